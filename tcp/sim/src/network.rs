use crate::{Frame, Impairment, Link};

#[cfg(test)]
mod tests;

/// A frame that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery<F> {
    /// Arrival time in nanoseconds.
    pub at: u64,
    /// The node that sent it.
    pub from: usize,
    /// The destination node.
    pub to: usize,
    /// The frame.
    pub frame: F,
}

/// Several nodes. Every pair of them is joined by two [`Link`]s, one in each direction. Each link has its own random
/// sequence, derived from the impairment's seed.
pub struct Network<F> {
    nodes: usize,
    links: Vec<Link<F>>,
}

impl<F: Frame> Network<F> {
    /// Makes a network of `nodes` nodes, numbered from 0.
    pub fn new(nodes: usize, impairment: &Impairment) -> Self {
        let links = (0..nodes * nodes)
            .map(|i| Link::new(&Impairment { seed: derive(impairment.seed, i), ..*impairment }))
            .collect();
        Network { nodes, links }
    }

    /// Makes a network of two nodes, 0 and 1.
    pub fn pair(impairment: &Impairment) -> Self {
        Network::new(2, impairment)
    }

    /// Sends a frame at time `now`. A frame to or from a node that does not exist is lost.
    pub fn push(&mut self, now: u64, from: usize, to: usize, frame: F) {
        if let Some(link) = self.link_mut(from, to) {
            link.push(now, frame);
        }
    }

    /// Sends a frame at time `now` to every other node. A copy for which there is no memory is lost.
    pub fn broadcast(&mut self, now: u64, from: usize, frame: &F) {
        for to in (0..self.nodes).filter(|&to| to != from) {
            if let Some(copy) = frame.copy() {
                self.push(now, from, to, copy);
            }
        }
    }

    /// Returns one direction between two nodes; `None` if a node does not exist.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link<F>> {
        if from.max(to) < self.nodes { self.links.get(from * self.nodes + to) } else { None }
    }

    /// Returns one direction between two nodes for changes; `None` if a node does not exist.
    pub fn link_mut(&mut self, from: usize, to: usize) -> Option<&mut Link<F>> {
        if from.max(to) < self.nodes { self.links.get_mut(from * self.nodes + to) } else { None }
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = &Link<F>> {
        self.links.iter()
    }

    /// Returns the time at which the next frame arrives at any node; `None` if none is in transit.
    pub fn next_arrival(&self) -> Option<u64> {
        self.links.iter().filter_map(Link::next_arrival).min()
    }

    /// Returns the frame that arrived first, if it has arrived by `now`; otherwise `None`.
    pub fn pop(&mut self, now: u64) -> Option<Delivery<F>> {
        let (at, i) =
            self.links.iter().enumerate().filter_map(|(i, l)| Some((l.next_arrival()?, i))).min()?;
        let frame = self.links.get_mut(i)?.pop(now)?;
        Some(Delivery { at, from: i / self.nodes, to: i % self.nodes, frame })
    }
}

/// Derives the seed of link number `i`. Two links with adjacent numbers never get the same seed.
fn derive(seed: u64, i: usize) -> u64 {
    seed.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ i as u64
}
