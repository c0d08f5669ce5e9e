//! The engine's names for connections and queue pairs. Each kind of number has its own type, so that the compiler
//! finds a mix-up.
//!
//! An index is valid until its object is removed from the table. Anything that may outlive an endpoint (alarms,
//! queues of waiting endpoints, the transport, the program) uses an [`EndpointId`].

use crate::shared::cm::RequestId;
use crate::shared::engines::EngineNumber;
use urnic_tcp::slab::{SlabId, SlabIndex};

/// Index of an endpoint (one connection) in the engine's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(super) struct EndpointIndex(u32);

/// Identifies one endpoint. Endpoints that are created later never get the same id.
pub(super) type EndpointId = SlabId<EndpointIndex>;

/// Index of a queue pair in the engine's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct QpIndex(u32);

/// A queue pair's number, which programs use.
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

/// The tag of a connection that has no endpoint. It differs from the tags of all endpoints.
pub(super) const NO_TAG: u64 = 0;

/// Returns the tag by which the transport names an endpoint's connection.
#[inline]
pub(super) fn tag(id: EndpointId) -> u64 {
    id.to_bits()
}

/// Returns the endpoint that a tag names.
#[inline]
pub(super) fn tagged(tag: u64) -> EndpointId {
    SlabId::from_bits(tag)
}

/// Returns the id by which the program names the connection request of an endpoint.
pub(super) fn request(engine: EngineNumber, id: EndpointId) -> RequestId {
    RequestId { engine, endpoint: id.to_bits() }
}

/// Returns the endpoint of a connection request.
pub(super) fn requested(request: RequestId) -> EndpointId {
    SlabId::from_bits(request.endpoint)
}
