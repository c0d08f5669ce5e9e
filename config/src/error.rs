//! Errors in settings: what is wrong, where it is, and what to write instead.

use std::fmt;
use std::path::PathBuf;

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line; `None`: the file as a whole.
        line: Option<usize>,
    },
    /// A variable of the environment.
    Env(String),
    /// An option of the command line, as typed (`--mtu`).
    Option(String),
    /// The built-in default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(f, "{}", path.display()),
            Origin::Env(name) => write!(f, "environment variable {name}"),
            Origin::Option(name) => write!(f, "option {name}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}{problem}; {remedy}", key.as_ref().map(|k| format!("{k}: ")).unwrap_or_default())]
pub struct ConfigError {
    /// Where the setting came from.
    pub origin: Origin,
    /// The key as `section.key`; `None` if the error is not about one key.
    pub key: Option<String>,
    /// Description of the mistake, such as `575 is outside 576 to 9000`.
    pub problem: String,
    /// Advice on what to write instead, such as `did you mean mtu?`.
    pub remedy: String,
}
