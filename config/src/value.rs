//! A setting's value as written, and its conversion to the type of its key.

use crate::Choice;
use crate::units;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A value before it is converted to the type of its key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// From the environment or the command line, where everything is text.
    Text(String),
    /// A TOML string.
    Str(String),
    /// A TOML integer.
    Int(i64),
    /// A TOML boolean.
    Bool(bool),
    /// A TOML array.
    List(Vec<Value>),
    /// Another TOML value. Holds only its description for messages, such as `a date`.
    Other(&'static str),
}

/// Why a value does not fit its key: the problem, worded to follow the name of the key in a message. The remedy in
/// the message is the key's own (`Key::write`).
pub(crate) type Wrong = String;

impl Value {
    fn wrong_type(&self, wanted: &str) -> Wrong {
        let found = match self {
            Value::Text(text) => return format!("{text:?} is not {wanted}"),
            Value::Str(text) => format!("the string {text:?}"),
            Value::Int(n) => format!("the number {n}"),
            Value::Bool(b) => format!("the boolean {b}"),
            Value::List(_) => "an array".to_string(),
            Value::Other(kind) => (*kind).to_string(),
        };
        format!("{found} is not {wanted}")
    }

    fn text(&self, wanted: &str) -> Result<&str, Wrong> {
        match self {
            Value::Text(text) | Value::Str(text) => Ok(text),
            _ => Err(self.wrong_type(wanted)),
        }
    }

    /// Reads `true` or `false`. Text may also be `yes`, `on` or `1`, and `no`, `off` or `0`.
    pub fn boolean(&self) -> Result<bool, Wrong> {
        match self {
            Value::Bool(b) => Ok(*b),
            Value::Text(text) => match text.as_str() {
                "true" | "yes" | "on" | "1" => Ok(true),
                "false" | "no" | "off" | "0" => Ok(false),
                _ => Err(self.wrong_type("true or false")),
            },
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// Reads a whole number within a range.
    pub fn number<T: TryFrom<u64> + Into<u64> + Copy>(&self, range: RangeInclusive<T>) -> Result<T, Wrong> {
        let n = match self {
            Value::Int(n) => u64::try_from(*n).ok(),
            Value::Text(text) => match text.parse::<i128>() {
                Ok(n) => u64::try_from(n).ok(),
                Err(_) => return Err(self.wrong_type("a whole number")),
            },
            _ => return Err(self.wrong_type("a whole number")),
        };
        within(n, &range).ok_or_else(|| self.out_of(&range))
    }

    /// Reads a number of bytes within a range: a whole number, with or without a unit.
    pub fn bytes<T: TryFrom<u64> + Into<u64> + Copy>(&self, range: RangeInclusive<T>) -> Result<T, Wrong> {
        let n = match self {
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => {
                let text = self.text("a number of bytes")?;
                Some(units::bytes(text).ok_or_else(|| self.wrong_type("a number of bytes"))?)
            }
        };
        within(n, &range).ok_or_else(|| self.out_of(&range))
    }

    fn out_of<T: Into<u64> + Copy>(&self, range: &RangeInclusive<T>) -> Wrong {
        let shown = match self {
            Value::Int(n) => n.to_string(),
            Value::Text(text) | Value::Str(text) => text.clone(),
            _ => String::new(),
        };
        format!("{shown} is outside {} to {}", (*range.start()).into(), (*range.end()).into())
    }

    /// Reads a time with a unit, within a range.
    pub fn duration(&self, range: RangeInclusive<Duration>) -> Result<Duration, Wrong> {
        let text = self.text("a time with a unit")?;
        let time = units::duration(text).ok_or_else(|| self.wrong_type("a time with a unit"))?;
        if !range.contains(&time) {
            return Err(format!("{text:?} is outside {:?} to {:?}", range.start(), range.end()));
        }
        Ok(time)
    }

    /// Returns whether the value is the string `off` or the boolean `false`.
    pub fn is_off(&self) -> bool {
        match self {
            Value::Text(text) | Value::Str(text) => text == "off",
            Value::Bool(b) => !b,
            _ => false,
        }
    }

    /// Returns whether the value is the string `auto`.
    pub fn is_auto(&self) -> bool {
        matches!(self, Value::Text(text) | Value::Str(text) if text == "auto")
    }

    /// Reads one of the words of an enum.
    pub fn choice<T: Choice>(&self) -> Result<T, Wrong> {
        let words: Vec<_> = T::WORDS.iter().map(|(_, word)| *word).collect();
        let wanted = format!("one of {}", words.join(", "));
        let text = self.text(&wanted)?;
        T::from_word(text).ok_or_else(|| self.wrong_type(&wanted))
    }

    /// Reads a string, which the type `T` parses.
    pub fn parsed<T: FromStr<Err = String>>(&self, wanted: &str) -> Result<T, Wrong> {
        self.text(wanted)?.parse()
    }

    /// Reads a string as it is.
    pub fn string(&self, wanted: &str) -> Result<String, Wrong> {
        self.text(wanted).map(str::to_string)
    }

    /// Reads IP addresses: one address, an array of strings, or text with commas.
    pub fn ips(&self) -> Result<Vec<IpAddr>, Wrong> {
        let wanted = "an IP address";
        let one = |text: &str| text.parse().map_err(|_| format!("{text:?} is not {wanted}"));
        match self {
            Value::List(list) => list.iter().map(|item| one(item.text(wanted)?)).collect(),
            _ => self.text(wanted)?.split(',').filter(|part| !part.is_empty()).map(one).collect(),
        }
    }

    /// Reads a list of items, each of which the type `T` parses: an array of strings, or text with commas.
    pub fn list<T: FromStr<Err = String>>(&self, wanted: &str) -> Result<Vec<T>, Wrong> {
        match self {
            Value::List(list) => list.iter().map(|item| item.parsed(wanted)).collect(),
            _ => self.text(wanted)?.split(',').filter(|part| !part.is_empty()).map(str::parse).collect(),
        }
    }

    /// Reads core numbers: an integer, an array of integers, or text such as `0,2-3`.
    pub fn cores(&self) -> Result<Vec<usize>, Wrong> {
        let wanted = "a list of core numbers";
        let twice = || "a core is listed twice".to_string();
        let mut cores = Vec::new();
        match self {
            Value::Int(_) => cores.push(self.core()?),
            Value::List(list) => {
                for item in list {
                    cores.push(item.core()?);
                }
            }
            _ => {
                let text = self.text(wanted)?;
                for part in text.split(',').filter(|_| !text.is_empty()) {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    let first = Value::Text(first.to_string()).core()?;
                    let last = Value::Text(last.to_string()).core()?;
                    if first > last {
                        return Err(format!("the range {part} is empty"));
                    }
                    cores.extend(first..=last);
                    // Decided here and not at the end, because a long text of ranges would fill the memory.
                    if cores.len() > 1024 {
                        return Err(twice());
                    }
                }
            }
        }
        let mut sorted = cores.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != cores.len() {
            return Err(twice());
        }
        Ok(cores)
    }

    fn core(&self) -> Result<usize, Wrong> {
        self.number(0..=1023u16).map(usize::from)
    }
}

fn within<T: TryFrom<u64> + Into<u64> + Copy>(n: Option<u64>, range: &RangeInclusive<T>) -> Option<T> {
    let n = n?;
    if n < (*range.start()).into() || n > (*range.end()).into() {
        return None;
    }
    T::try_from(n).ok()
}

#[cfg(test)]
mod tests;
