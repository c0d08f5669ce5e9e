//! Loads the layers: defaults, file, environment, command line.

use crate::error::{ConfigError, Origin};
use crate::keys::{self, KEYS, Key, SECTIONS};
use crate::suggest;
use crate::value::Value;
use crate::{Config, MTU_MIN_IPV6, Mac, MacSource};
use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The sources of settings, besides the defaults.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A TOML file; `None`: the file that `URNIC_CONFIG` names, if any.
    pub file: Option<PathBuf>,
    /// The environment; only `URNIC_*` variables matter.
    pub env: Vec<(String, String)>,
    /// Settings from a command line.
    pub options: Vec<Setting>,
}

/// One setting of a command line.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The option as typed, for messages: `--mtu`.
    pub option: String,
    /// The key: `port.mtu`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

/// The variable that names the file.
const FILE_VARIABLE: &str = "URNIC_CONFIG";
/// Variables that are not settings.
const OTHER_VARIABLES: [&str; 2] = [FILE_VARIABLE, "URNIC_LOG"];
/// The largest file, in bytes. A larger one is refused as a mistake.
const FILE_MAX: u64 = 1 << 20;

impl Sources {
    /// Returns the sources of a process without a command line: its environment, and the file that
    /// `URNIC_CONFIG` names, if any.
    pub fn process() -> Sources {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| {
                let name = name.into_string().ok().filter(|n| n.starts_with("URNIC_"))?;
                Some((name, value.to_string_lossy().into_owned()))
            })
            .collect();
        Sources { env, ..Sources::default() }
    }
}

/// A configuration being loaded: its settings, and where each key was set last.
struct Layers {
    config: Config,
    origins: HashMap<String, Origin>,
}

impl Config {
    /// Puts the layers together: defaults, then the file, then the environment, then options.
    ///
    /// # Errors
    /// The first mistake found: an unreadable or malformed file, an unknown section or key, an unknown variable whose
    /// name is close to a known one, a value of the wrong type or outside its range, or contradictory settings.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        Self::load_with_origins(sources).map(|(config, _)| config)
    }

    /// Loads as [`Self::load`] does, and also returns where each key (`section.name`) was set last. Keys that no source
    /// sets are absent.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn load_with_origins(sources: &Sources) -> Result<(Config, HashMap<String, Origin>), ConfigError> {
        let mut layers = Layers { config: Config::default(), origins: HashMap::new() };
        let variable = sources.env.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
        if let Some(path) = sources.file.as_deref().or(variable.map(|(_, value)| Path::new(value))) {
            layers.file(path, &read(path)?)?;
        }
        layers.environment(&sources.env)?;
        for Setting { option, key, value } in &sources.options {
            let origin = Origin::Option(option.clone());
            let key = key.split_once('.').and_then(|(section, name)| keys::find(section, name));
            let key = key.ok_or_else(|| ConfigError {
                origin: origin.clone(),
                key: None,
                problem: "there is no key for this option".to_string(),
                remedy: "name a key as section.key".to_string(),
            })?;
            layers.set(key, &Value::Text(value.clone()), origin)?;
        }
        layers.finish()
    }

    /// Parses the text of a configuration file, over the defaults. `path` is for messages.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let mut layers = Layers { config: Config::default(), origins: HashMap::new() };
        layers.file(path, text)?;
        layers.finish().map(|(config, _)| config)
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let wrong = |problem: String, remedy: &str| ConfigError {
        origin: Origin::File { path: path.to_path_buf(), line: None },
        key: None,
        problem,
        remedy: remedy.to_string(),
    };
    let readable = "name a readable file with --config or URNIC_CONFIG";
    let meta = fs::metadata(path).map_err(|e| wrong(format!("cannot be read: {e}"), readable))?;
    if !meta.is_file() {
        return Err(wrong("is not a regular file".to_string(), readable));
    }
    if meta.len() > FILE_MAX {
        return Err(wrong(format!("has {} bytes", meta.len()), "a configuration has at most 1 MiB"));
    }
    let bytes = fs::read(path).map_err(|e| wrong(format!("cannot be read: {e}"), readable))?;
    String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8 text".to_string(), "save it as UTF-8"))
}

impl Layers {
    fn set(&mut self, key: &'static Key, value: &Value, origin: Origin) -> Result<(), ConfigError> {
        match (key.set)(&mut self.config, value) {
            Ok(()) => {
                self.origins.insert(key.path(), origin);
                Ok(())
            }
            Err(problem) => {
                Err(ConfigError { origin, key: Some(key.path()), problem, remedy: key.write.to_string() })
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let at = |offset: usize| Origin::File {
            path: path.to_path_buf(),
            line: Some(text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1),
        };
        let document = DeTable::parse(text).map_err(|e| ConfigError {
            origin: at(e.span().map_or(0, |span| span.start)),
            key: None,
            problem: format!("not valid TOML: {}", e.message().lines().next().unwrap_or("")),
            remedy: "correct the line; strings need quotes, sections look like [port]".to_string(),
        })?;
        // Sections and keys are read in the order of the text, so that the first mistake is reported.
        for (name, content) in in_order(document.get_ref()) {
            let (section, here) = (name.get_ref().as_ref(), at(name.span().start));
            let DeValue::Table(table) = content.get_ref() else {
                return Err(outside(section, here));
            };
            if !SECTIONS.contains(&section) {
                return Err(ConfigError {
                    origin: here,
                    key: None,
                    problem: format!("there is no section [{section}]"),
                    remedy: suggest::remedy(section, SECTIONS.iter().copied(), "the sections are"),
                });
            }
            for (name, value) in in_order(table) {
                let here = at(name.span().start);
                let Some(key) = keys::find(section, name.get_ref()) else {
                    return Err(unknown(section, name.get_ref(), here));
                };
                self.set(key, &toml_value(value.get_ref()), here)?;
            }
        }
        Ok(())
    }

    fn environment(&mut self, env: &[(String, String)]) -> Result<(), ConfigError> {
        let mut env: Vec<_> = env.iter().filter(|(name, _)| name.starts_with("URNIC_")).collect();
        env.sort();
        for (name, value) in env {
            if let Some(key) = KEYS.iter().find(|key| key.env == name) {
                self.set(key, &Value::Text(value.clone()), Origin::Env(name.clone()))?;
            } else if !OTHER_VARIABLES.contains(&name.as_str()) {
                // Other programs may use variables of this prefix, so only a name close to one of ours is a mistake.
                if let Some(near) = suggest::nearest(name, KEYS.iter().map(|key| key.env)) {
                    return Err(ConfigError {
                        origin: Origin::Env(name.clone()),
                        key: None,
                        problem: "there is no such setting".to_string(),
                        remedy: format!("did you mean {near}?"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes the checks that involve several keys, and returns the configuration and where each key was set last.
    fn finish(self) -> Result<(Config, HashMap<String, Origin>), ConfigError> {
        let Layers { config, origins } = self;
        let origin = |key: &str| origins.get(key).cloned().unwrap_or(Origin::Default);
        let own = &config.ip.addresses;
        let gateways = config.ip.gateways.iter().map(|router| ("ip.gateway", *router));
        let routes = config.ip.routes.iter().map(|route| ("ip.routes", route.via));
        // An IPv6 router may be given by its link-local address (RFC 4861).
        let ipv6 = config.ip.has_ipv6();
        let link_local =
            |router: IpAddr| matches!(router, IpAddr::V6(ip) if ip.is_unicast_link_local() && ipv6);
        let wrong =
            |router| !link_local(router) && !own.iter().any(|ip| ip.contains(router) && router != ip.address);
        if !own.is_empty()
            && let Some((key, router)) = gateways.chain(routes).find(|(_, router)| wrong(*router))
        {
            let networks: Vec<_> = own.iter().map(ToString::to_string).collect();
            return Err(ConfigError {
                origin: origin(key),
                key: Some(key.to_string()),
                problem: match own.iter().any(|ip| ip.address == router) {
                    true => format!("{router} is the device's own address"),
                    false => format!("{router} is not in the network of {}", networks.join(" or ")),
                },
                remedy:
                    "write the address of a router in the network of ip.ip, or leave it out; or correct the \
                         prefix length of ip.ip"
                        .to_string(),
            });
        }
        if config.ip.has_ipv6() && config.port.mtu < MTU_MIN_IPV6 {
            return Err(ConfigError {
                origin: origin("port.mtu"),
                key: Some("port.mtu".to_string()),
                problem: format!("{} is too small for IPv6", config.port.mtu),
                remedy: format!(
                    "write at least {MTU_MIN_IPV6}, or leave the IPv6 addresses and ip.autoconf out"
                ),
            });
        }
        if config.ip.autoconf && own.is_empty() && config.port.mac == MacSource::Derived {
            return Err(ConfigError {
                origin: origin("ip.autoconf"),
                key: Some("ip.autoconf".to_string()),
                problem: "there is no address that an Ethernet address could be derived from".to_string(),
                remedy:
                    "write an address under ip.ip, or an Ethernet address or \"interface\" under port.mac"
                        .to_string(),
            });
        }
        if let Some(spec) = &config.port.spec
            && config.port.mac == MacSource::Interface
            && (spec.is_memory_link() || spec.kind() == "tap")
        {
            return Err(ConfigError {
                origin: origin("port.mac"),
                key: Some("port.mac".to_string()),
                problem: format!("a {} port has no Ethernet address of its own to use", spec.kind()),
                remedy: "leave the key out to derive the address from the IP address".to_string(),
            });
        }
        Ok((config, origins))
    }
}

/// Returns the entries of a table in the order of the text.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

fn toml_value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Str(text.to_string()),
        DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => Value::Int(n),
            Err(_) => Value::Other("a number of more than 64 bits"),
        },
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Array(list) => Value::List(list.iter().map(|v| toml_value(v.get_ref())).collect()),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

/// Returns the error for a key before the first section.
fn outside(name: &str, origin: Origin) -> ConfigError {
    let homes: Vec<_> = KEYS.iter().filter(|key| key.name == name).map(|key| key.section).collect();
    let remedy = match homes.as_slice() {
        [section, ..] => format!("put it under [{section}]"),
        [] => format!("put keys into a section; the sections are {}", SECTIONS.join(", ")),
    };
    ConfigError {
        origin,
        key: Some(name.to_string()),
        problem: "the key is in no section".to_string(),
        remedy,
    }
}

/// Returns the error for a key that the section does not have.
fn unknown(section: &str, name: &str, origin: Origin) -> ConfigError {
    let elsewhere = KEYS.iter().find(|key| key.name == name).map(|key| key.section);
    let own = KEYS.iter().filter(|key| key.section == section).map(|key| key.name);
    ConfigError {
        origin,
        key: Some(format!("{section}.{name}")),
        problem: "there is no such key".to_string(),
        remedy: match elsewhere {
            Some(section) => format!("it belongs under [{section}]"),
            None => suggest::remedy(name, own, &format!("the keys of [{section}] are")),
        },
    }
}

impl Config {
    /// Returns the Ethernet address that is set or derived from the IP address. `None` if the interface's address is
    /// used, or if there is no IP address to derive an Ethernet address from.
    pub fn mac(&self) -> Option<Mac> {
        match self.port.mac {
            MacSource::Fixed(mac) => Some(mac),
            MacSource::Derived => self.ip.addresses.first().map(|ip| Mac::for_address(ip.address)),
            MacSource::Interface => None,
        }
    }
}

#[cfg(test)]
mod tests;
