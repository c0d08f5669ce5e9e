use crate::{Frame, Impairment, Link};

#[cfg(test)]
mod tests;

/// A frame that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery<F> {
    /// When.
    pub at: u64,
    /// The node that sent it.
    pub from: usize,
    /// The node it is for.
    pub to: usize,
    /// The frame.
    pub frame: F,
}

/// Some nodes, every two of them joined by a [`Link`] in each direction. Each link has its own random sequence,
/// derived from the impairment's seed.
pub struct Network<F> {
    nodes: usize,
    links: Vec<Link<F>>,
}

impl<F: Frame> Network<F> {
    /// A network of `nodes` nodes, numbered from 0.
    pub fn new(nodes: usize, impairment: &Impairment) -> Self {
        let links = (0..nodes * nodes)
            .map(|i| Link::new(&Impairment { seed: derive(impairment.seed, i), ..*impairment }))
            .collect();
        Network { nodes, links }
    }

    /// Two nodes, 0 and 1.
    pub fn pair(impairment: &Impairment) -> Self {
        Network::new(2, impairment)
    }

    /// Sends a frame at `now`. A frame to or from a node that does not exist is lost.
    pub fn push(&mut self, now: u64, from: usize, to: usize, frame: F) {
        if let Some(link) = self.link_mut(from, to) {
            link.push(now, frame);
        }
    }

    /// Sends a frame at `now` to every other node.
    pub fn broadcast(&mut self, now: u64, from: usize, frame: &F) {
        for to in (0..self.nodes).filter(|&to| to != from) {
            if let Some(copy) = frame.copy() {
                self.push(now, from, to, copy);
            }
        }
    }

    /// One direction between two nodes.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link<F>> {
        if from.max(to) < self.nodes { self.links.get(from * self.nodes + to) } else { None }
    }

    /// One direction between two nodes, to change what it does.
    pub fn link_mut(&mut self, from: usize, to: usize) -> Option<&mut Link<F>> {
        if from.max(to) < self.nodes { self.links.get_mut(from * self.nodes + to) } else { None }
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = &Link<F>> {
        self.links.iter()
    }

    /// The time at which the next frame arrives anywhere.
    pub fn next_arrival(&self) -> Option<u64> {
        self.links.iter().filter_map(Link::next_arrival).min()
    }

    /// The next frame that has arrived by `now`; of several, the one that arrived first.
    pub fn pop(&mut self, now: u64) -> Option<Delivery<F>> {
        let (at, i) =
            self.links.iter().enumerate().filter_map(|(i, l)| Some((l.next_arrival()?, i))).min()?;
        let frame = self.links.get_mut(i)?.pop(now)?;
        Some(Delivery { at, from: i / self.nodes, to: i % self.nodes, frame })
    }
}

/// A seed of its own for each link, never the same for neighbouring numbers.
fn derive(seed: u64, i: usize) -> u64 {
    seed.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ i as u64
}
