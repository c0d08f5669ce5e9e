//! How the engine names connections and queue pairs: a type for each meaning of a number, so that two cannot be confused.
//!
//! An index is valid while what it names is there, within one pass at least until that is removed. Whatever may outlive an
//! endpoint (alarms, queues of those that wait, the transport, the program) names it by an [`EndpointId`].

use crate::shared::cm::RequestId;
use crate::shared::engines::EngineNumber;
use urnic_tcp::slab::{SlabId, SlabIndex};

/// Where an endpoint, one connection, is in the engine's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct EndpointIndex(u32);

/// Names one endpoint for good.
pub(super) type EndpointId = SlabId<EndpointIndex>;

/// Where a queue pair is in the engine's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct QpIndex(u32);

/// A queue pair's number, by which programs know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Qpn(pub(super) u32);

impl SlabIndex for EndpointIndex {
    #[inline]
    fn from_place(place: u32) -> Self {
        EndpointIndex(place)
    }

    #[inline]
    fn place(self) -> u32 {
        self.0
    }
}

impl SlabIndex for QpIndex {
    #[inline]
    fn from_place(place: u32) -> Self {
        QpIndex(place)
    }

    #[inline]
    fn place(self) -> u32 {
        self.0
    }
}

/// The tag of a connection that has no endpoint; no endpoint's.
pub(super) const NO_TAG: u64 = 0;

/// Returns the number by which the transport tells of an endpoint's connection.
#[inline]
pub(super) fn tag(id: EndpointId) -> u64 {
    id.to_bits()
}

/// Returns the endpoint that a transport's event is about.
#[inline]
pub(super) fn tagged(tag: u64) -> EndpointId {
    SlabId::from_bits(tag)
}

/// Returns the name that a connection request has before the program.
pub(super) fn request(engine: EngineNumber, id: EndpointId) -> RequestId {
    RequestId { engine, endpoint: id.to_bits() }
}

/// Returns the endpoint whose connection request the program answers.
pub(super) fn requested(request: RequestId) -> EndpointId {
    SlabId::from_bits(request.endpoint)
}
