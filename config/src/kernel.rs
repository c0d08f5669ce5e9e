//! The addresses of a device on the kernel's sockets.

use std::fmt;
use std::net::IpAddr;

/// A choice among the host's addresses for a device on the kernel's sockets: `kernel`, `kernel:ADDRESS`,
/// `kernel:INTERFACE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum KernelAddresses {
    /// All of the host's addresses, including addresses that are added later.
    #[default]
    All,
    /// One address.
    One(IpAddr),
    /// The first address of an interface.
    Interface(String),
}

/// The longest name of an interface, in bytes (`IFNAMSIZ` without the final zero).
const NAME_MAX: usize = 15;

impl KernelAddresses {
    /// Parses the value of the key `port.port`; `None` if its kind, the part before the colon, is not `kernel`.
    ///
    /// # Errors
    /// A description of the problem, if the part after the colon is neither an address nor the name of an
    /// interface.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let (kind, argument) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        if kind != "kernel" {
            return None;
        }
        Some(match argument {
            None => Ok(Self::All),
            Some(argument) => match argument.parse() {
                Ok(ip) => Ok(Self::One(ip)),
                Err(_) if is_interface(argument) => Ok(Self::Interface(argument.to_owned())),
                Err(_) => Err(format!("{argument:?} is neither an address nor the name of an interface")),
            },
        })
    }
}

fn is_interface(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
}

impl fmt::Display for KernelAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("kernel"),
            Self::One(ip) => write!(f, "kernel:{ip}"),
            Self::Interface(name) => write!(f, "kernel:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        for (text, wanted) in [
            ("kernel", KernelAddresses::All),
            ("kernel:10.0.0.1", KernelAddresses::One([10, 0, 0, 1].into())),
            ("kernel:fd00::1", KernelAddresses::One("fd00::1".parse().unwrap())),
            ("kernel:eth0", KernelAddresses::Interface("eth0".to_owned())),
        ] {
            assert_eq!(KernelAddresses::parse(text), Some(Ok(wanted.clone())));
            assert_eq!(wanted.to_string(), text);
        }
        assert_eq!(KernelAddresses::parse("af_packet:eth0"), None);
        for wrong in ["kernel:", "kernel:a name", "kernel:../x", "kernel:0123456789abcdef"] {
            assert!(KernelAddresses::parse(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
