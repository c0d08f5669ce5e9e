//! Converts options into a configuration.

use std::ffi::OsString;
use std::path::Path;

use urnic::simulation::Impairment;
use urnic_config::{Config, PortSpec, Setting, Sources, variable};

use crate::args::{EngineArgs, NodeArgs};
use crate::failure::Failure;

/// Collects the options of a command line.
pub struct Settings(Sources);

impl Settings {
    /// Starts with the environment of this process, and a file; `None`: the file that `URNIC_CONFIG` names, if
    /// any.
    pub fn new(file: Option<&Path>) -> Self {
        Self(Sources { file: file.map(Path::to_path_buf), ..Sources::process() })
    }

    /// Adds an option, if it was given.
    pub fn set(mut self, option: &str, key: &'static str, value: Option<&str>) -> Self {
        let setting = value.map(|v| Setting { option: option.to_owned(), key, value: v.to_owned() });
        self.0.options.extend(setting);
        self
    }

    /// Collects the options of commands that run an engine.
    pub fn of_engine(args: &EngineArgs) -> Self {
        Self::new(args.config.as_deref())
            .set("--mtu", "port.mtu", args.mtu.as_deref())
            .set("--cores", "engine.cores", args.cores.as_deref())
            .set("--engines", "engine.engines", args.engines.as_deref())
            .set("--progress", "engine.progress", args.progress.as_deref())
            .set("--fault", "port.fault", args.fault.as_deref())
            .set("--capture", "port.capture", args.capture.as_deref())
    }

    /// Collects the options of a single node.
    pub fn of_node(args: &NodeArgs) -> Self {
        let (addresses, gateways) = (args.ip.join(","), args.gateway.join(","));
        Self::of_engine(&args.engine)
            .set("--ip", "ip.ip", (!args.ip.is_empty()).then_some(addresses.as_str()))
            .set("--autoconf", "ip.autoconf", args.autoconf.then_some("true"))
            .set("--vlan", "ip.vlan", args.vlan.as_deref())
            .set("--gateway", "ip.gateway", (!args.gateway.is_empty()).then_some(gateways.as_str()))
            .set("--port", "port.port", args.port.as_deref())
            .set("--mac", "port.mac", args.mac.as_deref())
    }

    /// Adds `--no-crc`.
    pub fn and_no_crc(self, no_crc: bool) -> Self {
        self.set("--no-crc", "mpa.crc", no_crc.then_some("false"))
    }

    /// Returns the settings as environment variables for a program. Fails if [`Self::load_node`] fails.
    pub fn into_environment(self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let mut variables: Vec<(&'static str, OsString)> = Vec::new();
        if let Some(file) = &self.0.file {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            variables.push(("URNIC_CONFIG", file.into()));
        }
        for Setting { key, value, .. } in &self.0.options {
            variables.extend(variable(key).map(|name| (name, value.into())));
        }
        let config = self.load_node()?;
        // The address is always set, even if it came from the file, for programs that read only this variable.
        if !config.ip.addresses.is_empty() {
            let addresses: Vec<_> = config.ip.addresses.iter().map(ToString::to_string).collect();
            variables.push(("URNIC_IP", addresses.join(",").into()));
        }
        Ok(variables)
    }

    /// Loads the configuration.
    pub fn load(self) -> Result<Config, Failure> {
        let config = Config::load(&self.0)?;
        if let Some(fault) = &config.port.fault {
            fault.parse::<Impairment>().map_err(|error| {
                Failure::Usage(format!(
                    "port.fault: {error}; write the faults to inject, such as \"loss=0.01,seed=7\""
                ))
            })?;
        }
        Ok(config)
    }

    /// Loads the configuration of a node that opens a device; a device on a port needs an address.
    pub fn load_node(self) -> Result<Config, Failure> {
        let config = self.load()?;
        if config.port.spec.is_none() {
            return Ok(config);
        }
        if !config.ip.is_configured() {
            return Err(Failure::Usage(
                "the port has no IP address; use --ip ADDR/LEN, URNIC_IP, or ip = \"ADDR/LEN\" under [ip] in a \
                 configuration file"
                    .to_owned(),
            ));
        }
        // An end of a link waits for the other end. Without this check it would wait for ever, because neither end
        // could make its socket in a missing folder.
        let path = config.port.spec.as_ref().and_then(PortSpec::path);
        let folder = path.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(Failure::Usage(format!(
                "port.port: the folder {} for the socket of the link does not exist; create it, or choose another path",
                folder.display()
            )));
        }
        Ok(config)
    }
}
