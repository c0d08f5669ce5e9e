//! Finds the cores that are near a port's NIC (NUMA). An engine on another node has cache misses to remote memory for
//! every frame.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use urnic_config::PortSpec;

#[cfg(test)]
mod tests;

/// The nodes of a machine and the cores of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    nodes: BTreeMap<u32, Vec<usize>>,
}

impl Machine {
    /// Returns the nodes of this machine, as Linux describes them; no nodes if the description cannot be read.
    pub fn this() -> Self {
        Self::described_at(Path::new("/sys"))
    }

    fn described_at(sys: &Path) -> Self {
        let entries = fs::read_dir(sys.join("devices/system/node")).into_iter().flatten().flatten();
        let node = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, cores_in(&fs::read_to_string(entry.path().join("cpulist")).ok()?)))
        };
        Self { nodes: entries.filter_map(node).collect() }
    }

    /// Returns the NUMA node of a port's NIC. `None` if the port has no NIC, if the system does not know the node, or
    /// if the machine has only one node, because then all cores are near.
    pub fn node_of(&self, port: &PortSpec) -> Option<u32> {
        self.node_of_at(Path::new("/sys"), port)
    }

    fn node_of_at(&self, sys: &Path, port: &PortSpec) -> Option<u32> {
        let device = match port {
            PortSpec::Pci { address, .. } => sys.join("bus/pci/devices").join(address),
            PortSpec::AfPacket { interface, .. } | PortSpec::AfXdp { interface, .. } => {
                sys.join("class/net").join(interface).join("device")
            }
            _ => return None,
        };
        // The file contains -1 if the firmware does not name the node.
        let node = fs::read_to_string(device.join("numa_node")).ok()?.trim().parse().ok()?;
        (self.nodes.len() > 1 && self.nodes.contains_key(&node)).then_some(node)
    }

    /// Returns those of `cores` that are at `node`; all of `cores` if none of them is at `node`, or if `node` is
    /// `None`.
    pub fn near(&self, node: Option<u32>, cores: &[usize]) -> Vec<usize> {
        let own = node.and_then(|node| self.nodes.get(&node));
        let near: Vec<_> =
            cores.iter().copied().filter(|core| own.is_some_and(|own| own.contains(core))).collect();
        if near.is_empty() { cores.to_vec() } else { near }
    }

    /// Returns a warning for the user if some of the cores given for a port's engines are not at the port's node.
    pub fn warning(&self, port: &PortSpec, node: Option<u32>, cores: &[usize]) -> Option<String> {
        let node = node?;
        let own = self.nodes.get(&node)?;
        let far: Vec<_> = cores.iter().filter(|core| !own.contains(core)).map(usize::to_string).collect();
        if far.is_empty() {
            return None;
        }
        let (core, is, engine) = match far.len() {
            1 => ("core", "is", "its engine reaches"),
            _ => ("cores", "are", "their engines reach"),
        };
        let own: Vec<_> = own.iter().map(usize::to_string).collect();
        Some(format!(
            "{port}: the NIC is at NUMA node {node}, and {core} {} {is} not: {engine} every frame across nodes, which is \
             slower; give cores of that node ({}) in engine.cores",
            far.join(","),
            own.join(",")
        ))
    }
}

/// Parses a list of cores such as `0-3,8`, as Linux writes it.
fn cores_in(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}
