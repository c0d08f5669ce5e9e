use super::*;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

fn host(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

/// A simple model of the room: all members, oldest first, and the sources in the order in which they reached their
/// present number of members.
#[derive(Default)]
struct Model {
    members: VecDeque<(u32, Source, Seat)>,
    sources: Vec<Source>,
}

impl Model {
    fn count(&self, source: Source) -> usize {
        self.members.iter().filter(|m| m.1 == source).count()
    }

    fn changed(&mut self, source: Source) {
        self.sources.retain(|s| *s != source);
        if self.count(source) > 0 {
            self.sources.push(source);
        }
    }

    fn displaced(&self) -> Option<u32> {
        let most = self.sources.iter().map(|s| self.count(*s)).max()?;
        let source = self.sources.iter().find(|s| self.count(**s) == most)?;
        self.members.iter().find(|m| m.1 == *source).map(|m| m.0)
    }

    fn remove(&mut self, who: u32) -> Seat {
        let at = self.members.iter().position(|m| m.0 == who).expect("a member");
        let (_, source, seat) = self.members.remove(at).expect("a member");
        self.changed(source);
        seat
    }
}

/// With random arrivals and departures, the crowd behaves as the model does.
#[test]
fn as_the_model() {
    for seed in 1..=40u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let limit = 1 + next(40) as usize;
        let (mut crowd, mut model) = (Crowd::new(limit), Model::default());
        for who in 0..3000u32 {
            let hosts = [2, 10, 100][who as usize / 1000];
            if next(3) > 0 || model.members.is_empty() {
                let from = host(next(hosts) as u32);
                let expected = (model.members.len() == limit).then(|| model.displaced()).flatten();
                let (seat, displaced) = crowd.enter(who, from, Time(u64::from(who)));
                assert_eq!(displaced, expected, "seed {seed}, {who}");
                if let Some(gone) = displaced {
                    model.remove(gone);
                }
                let source = Source::of(from);
                model.members.push_back((who, source, seat));
                model.changed(source);
            } else {
                let who = model.members[next(model.members.len() as u64) as usize].0;
                crowd.leave(model.remove(who));
            }
            assert_eq!(crowd.len, model.members.len());
            assert_eq!(crowd.by_source.len(), model.sources.len());
            assert_eq!(crowd.next(), model.members.front().map(|m| Time(u64::from(m.0))));
            assert_eq!(crowd.due(Time(u64::from(who))), model.members.front().map(|m| m.0));
            let most = model.sources.iter().map(|s| model.count(*s)).max().unwrap_or(0);
            assert_eq!(crowd.most, most, "seed {seed}, {who}");
        }
        // The size of the room bounds the crowd's allocations, however many sources have come.
        assert!(
            crowd.members.len() <= limit && crowd.families.len() <= limit && crowd.ranks.len() <= limit + 1
        );
    }
}

#[test]
fn a_source_displaces_its_own() {
    let mut crowd = Crowd::new(100);
    crowd.enter(0, host(0), Time(0));
    for who in 1..10_000_u32 {
        let (_, displaced) = crowd.enter(who, host(1), Time(0));
        assert_eq!(displaced, who.checked_sub(99).filter(|gone| *gone > 0));
    }
    assert_eq!(crowd.due(Time(0)), Some(0), "the one of the other source");
}

/// All hosts of one IPv6 network count as one source. Hosts of different IPv6 networks, and different IPv4 addresses,
/// count as different sources.
#[test]
fn sources() {
    let v6 = |network: u128, host: u128| IpAddr::V6(Ipv6Addr::from_bits(network << 64 | host));
    assert_eq!(Source::of(v6(7, 1)), Source::of(v6(7, u128::from(u64::MAX))));
    assert_ne!(Source::of(v6(7, 1)), Source::of(v6(8, 1)));
    assert_ne!(Source::of(host(1)), Source::of(host(2)));
    assert_eq!(Source::of(host(1)), Source::of("::ffff:10.0.0.1".parse().expect("an address")));
}
