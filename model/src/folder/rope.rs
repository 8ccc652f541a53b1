//! Rotary position embeddings: their frequencies, as a `config.json` gives them.

use std::f64::consts::TAU;

use serde_json::{Map, Value};

use crate::Result;
use crate::folder::reader::Reader;

const THETA: &str = "rope_theta";

/// Rotary frequencies of a model (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are scaled for a longer context.
    pub scaling: RopeScaling,
}

/// How frequencies are scaled so that a model reads longer contexts than it was pretrained on.
/// Names and formulas are those of `transformers` (`modeling_rope_utils.py`).
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not scaled.
    Default,
    /// All are divided by a factor (Chen et al., arXiv:2306.15595).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by a factor, high ones are kept, and those in
    /// between are interpolated.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Frequencies with fewer turns than this within the original context are divided.
        low_freq_factor: f64,
        /// Frequencies with more turns than this within the original context are kept.
        high_freq_factor: f64,
        /// The original context, in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al., arXiv:2309.00071): as Llama 3.1, with a ramp over the pairs and a
    /// factor on queries and keys.
    Yarn {
        /// At least 1.
        factor: f64,
        /// What cosines and sines are multiplied by.
        attention_factor: f64,
        /// Frequencies with more turns than this within the original context are kept.
        beta_fast: f64,
        /// Frequencies with fewer turns than this within the original context are divided.
        beta_slow: f64,
        /// The original context, in tokens.
        original_max_position_embeddings: f64,
        /// Whether the ramp begins and ends at whole pairs.
        truncate: bool,
    },
}

impl Rope {
    /// Angle per position of each pair of a head, in radians.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let width = head_dim as f64;
        let plain = (0..head_dim / 2).map(|pair| self.theta.powf(-2.0 * pair as f64 / width));
        match self.scaling {
            RopeScaling::Default => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: context,
            } => plain
                .map(|frequency| {
                    let turns = context * frequency / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * kept + frequency / factor * (1.0 - kept)
                })
                .collect(),
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: context,
                truncate,
                ..
            } => {
                // The pair that makes `turns` turns within the original context.
                let pair_of =
                    |turns: f64| width * (context / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let (first, last) = (pair_of(beta_fast), pair_of(beta_slow));
                let (first, last) = match truncate {
                    true => (first.floor(), last.ceil()),
                    false => (first, last),
                };
                let (first, last) = (first.max(0.0), last.min(width - 1.0));
                let last = if first == last { last + 0.001 } else { last };
                plain
                    .enumerate()
                    .map(|(pair, frequency)| {
                        let scaled = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                        frequency / factor * scaled + frequency * (1.0 - scaled)
                    })
                    .collect()
            }
        }
    }

    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor,
            _ => 1.0,
        }
    }

    /// Read as `transformers` 5 does: the keys of `rope_parameters` (or `rope_scaling`, its former
    /// name) take precedence over the key beside it. A file that versions of `transformers` read
    /// differently is refused.
    pub(super) fn read(reader: &Reader<'_>, max_position_embeddings: usize) -> Result<Self> {
        let given = |key: &str| reader.raw.get(key).filter(|value| !value.is_null());
        let beside = reader.number(THETA)?;
        let (key, value) = match (given("rope_parameters"), given("rope_scaling")) {
            (Some(_), Some(_)) => {
                return Err(reader.unsupported(
                    "rope_parameters and rope_scaling are both given, and transformers reads one of them; \
                     leave the other out"
                        .to_owned(),
                ));
            }
            (Some(value), None) => ("rope_parameters", value),
            (None, Some(value)) => ("rope_scaling", value),
            (None, None) => {
                let theta = beside.unwrap_or(10_000.0);
                return Ok(Self {
                    theta: checked_theta(reader, THETA, theta)?,
                    scaling: RopeScaling::Default,
                });
            }
        };
        let Some(inside) = value.as_object() else {
            return Err(reader.bad(format!("{key} must be an object or null, found {value}")));
        };
        let object = RopeObject {
            reader,
            key,
            inside,
        };
        object.check()?;
        let theta = object.number(THETA)?.or(beside).unwrap_or(10_000.0);
        if let Some(other) = beside.filter(|other| key == "rope_scaling" && *other != theta) {
            return Err(reader.unsupported(format!(
                "{key}.{THETA} is {theta} and {THETA} is {other}; versions of transformers differ in which they \
                 read, so give one of them"
            )));
        }
        Ok(Self {
            theta: checked_theta(reader, &format!("{key}.{THETA}"), theta)?,
            scaling: object.scaling(theta, max_position_embeddings)?,
        })
    }
}

fn checked_theta(reader: &Reader<'_>, key: &str, theta: f64) -> Result<f64> {
    match theta > 0.0 && theta.is_finite() {
        true => Ok(theta),
        false => Err(reader.bad(format!("{key} must be greater than 0, found {theta}"))),
    }
}

/// `rope_parameters` or `rope_scaling`.
struct RopeObject<'a> {
    reader: &'a Reader<'a>,
    key: &'static str,
    inside: &'a Map<String, Value>,
}

impl RopeObject<'_> {
    fn check(&self) -> Result<()> {
        let key = self.key;
        if let Some((layer, _)) = self.inside.iter().find(|(_, value)| value.is_object()) {
            return Err(self.reader.unsupported(format!(
                "{key} has parameters by kind of layer ({layer}); one rope_type and one rope_theta for all \
                 layers are supported"
            )));
        }
        const ROTATED: &str = "partial_rotary_factor";
        let rotated = [self.inside.get(ROTATED), self.reader.raw.get(ROTATED)];
        let mut rotated = rotated.into_iter().flatten();
        match rotated.find(|factor| factor.as_f64() != Some(1.0)) {
            Some(factor) => Err(self
                .reader
                .unsupported(format!("{ROTATED} {factor} is not supported, only 1 is"))),
            None => Ok(()),
        }
    }

    /// A number; `None` where it is absent or null.
    fn number(&self, name: &str) -> Result<Option<f64>> {
        let found = self.inside.get(name).filter(|value| !value.is_null());
        let read = |value: &Value| {
            value.as_f64().ok_or_else(|| {
                let key = self.key;
                self.reader
                    .bad(format!("{key}.{name} must be a number, found {value}"))
            })
        };
        found.map(read).transpose()
    }

    /// A number of at least `least`; required where there is no default.
    fn at_least(&self, least: f64, name: &str, default: Option<f64>) -> Result<f64> {
        let key = self.key;
        let found = self.number(name)?.or(default);
        let found = found.ok_or_else(|| self.reader.bad(format!("{key}.{name} is missing")))?;
        match found >= least && found <= f64::from(f32::MAX) {
            true => Ok(found),
            false => Err(self.reader.bad(format!(
                "{key}.{name} must be finite and at least {least}, found {found}"
            ))),
        }
    }

    fn kind(&self) -> Result<&str> {
        let named = ["rope_type", "type"].map(|name| {
            let value = self.inside.get(name).filter(|value| !value.is_null());
            value.map(|value| (name, value))
        });
        let mut named = named.into_iter().flatten();
        let Some((name, kind)) = named.next() else {
            return Ok("default");
        };
        let key = self.key;
        if let Some((other, differs)) = named.find(|(_, other)| *other != kind) {
            return Err(self.reader.unsupported(format!(
                "{key}.{name} is {kind} and {key}.{other} is {differs}; give one of them"
            )));
        }
        match kind.as_str() {
            Some(kind @ ("default" | "linear" | "llama3" | "yarn")) => Ok(kind),
            _ => Err(self.reader.unsupported(format!(
                "{key}.{name} {kind} is not supported; known are \"default\", \"linear\", \"llama3\", \"yarn\""
            ))),
        }
    }

    fn scaling(&self, theta: f64, max_position_embeddings: usize) -> Result<RopeScaling> {
        const CONTEXT: &str = "original_max_position_embeddings";
        let key = self.key;
        let kind = self.kind()?;
        if kind == "default" {
            return Ok(RopeScaling::Default);
        }
        let factor = self.at_least(1.0, "factor", None)?;
        let context = || match self.reader.number(CONTEXT)? {
            Some(beside) if beside >= 1.0 => Ok(beside),
            _ => self.at_least(1.0, CONTEXT, Some(max_position_embeddings as f64)),
        };
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor }),
            "llama3" => {
                let low = self.at_least(f64::MIN_POSITIVE, "low_freq_factor", None)?;
                let high = self.at_least(f64::MIN_POSITIVE, "high_freq_factor", None)?;
                if high <= low {
                    return Err(self.reader.bad(format!(
                        "{key}.high_freq_factor must be greater than low_freq_factor, found {high} and {low}"
                    )));
                }
                Ok(RopeScaling::Llama3 {
                    factor,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: context()?,
                })
            }
            _ => {
                let beta_fast = self.at_least(f64::MIN_POSITIVE, "beta_fast", Some(32.0))?;
                let beta_slow = self.at_least(f64::MIN_POSITIVE, "beta_slow", Some(1.0))?;
                if beta_fast < beta_slow || theta <= 1.0 {
                    return Err(self.reader.bad(format!(
                        "{key} of type yarn needs beta_fast of at least beta_slow and {THETA} above 1, \
                         found {beta_fast}, {beta_slow} and {theta}"
                    )));
                }
                let truncate = match self.inside.get("truncate") {
                    None => true,
                    Some(value) => value.as_bool().ok_or_else(|| {
                        let message =
                            format!("{key}.truncate must be true or false, found {value}");
                        self.reader.bad(message)
                    })?,
                };
                let default = self.mscale(factor)?;
                Ok(RopeScaling::Yarn {
                    factor,
                    attention_factor: self.at_least(
                        f64::MIN_POSITIVE,
                        "attention_factor",
                        Some(default),
                    )?,
                    beta_fast,
                    beta_slow,
                    original_max_position_embeddings: context()?,
                    truncate,
                })
            }
        }
    }

    /// YaRN's factor on attention where none is given: 0.1 ln(factor) + 1, or the quotient of
    /// two such numbers for models that give both scales.
    fn mscale(&self, factor: f64) -> Result<f64> {
        let scaled = |by: f64| 0.1 * by * factor.ln() + 1.0;
        let given = |name| Ok(self.number(name)?.filter(|scale| *scale != 0.0));
        Ok(match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(one), Some(all)) => scaled(one) / scaled(all),
            _ => scaled(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Rope> {
        let raw = serde_json::from_str(text).unwrap();
        let reader = Reader {
            raw: &raw,
            path: "m/config.json".as_ref(),
        };
        Rope::read(&reader, 512)
    }

    /// Expected values are those of transformers 5.24 for the same keys.
    #[test]
    fn the_rotary_base_is_read_as_transformers_reads_it_or_refused() {
        let with = |keys: &str| read(&format!("{{{keys}}}"));
        let other = "\"some\": 1";
        for (keys, theta) in [
            (other, 10_000.0),
            (r#""rope_theta": null, "rope_scaling": null"#, 10_000.0),
            (
                r#""rope_scaling": {"rope_type": "default", "rope_theta": 500000}"#,
                500_000.0,
            ),
            (
                r#""rope_scaling": {"type": "default"}, "rope_theta": 7.0"#,
                7.0,
            ),
            (
                r#""rope_scaling": {"rope_theta": 7}, "rope_theta": 7.0"#,
                7.0,
            ),
            (
                r#""rope_parameters": {"rope_theta": 500000}, "rope_theta": 7.0"#,
                500_000.0,
            ),
            (
                r#""rope_parameters": {"rope_theta": 3.5, "partial_rotary_factor": 1.0}"#,
                3.5,
            ),
        ] {
            assert_eq!(with(keys).unwrap().theta, theta, "{keys}");
        }
        for (keys, words) in [
            (
                r#""rope_scaling": {"rope_theta": 500000}, "rope_theta": 7.0"#,
                ["500000", "rope_theta is 7"],
            ),
            (
                r#""rope_scaling": {"type": "default"}, "rope_parameters": {}"#,
                ["rope_scaling", "rope_parameters"],
            ),
            (
                r#""rope_scaling": {"rope_type": "linear"}"#,
                ["rope_scaling.factor", "missing"],
            ),
            (
                r#""rope_scaling": {"type": "linear", "factor": 0.5}"#,
                ["rope_scaling.factor", "at least 1"],
            ),
            (
                r#""rope_parameters": {"type": "yarn", "factor": 2, "truncate": 1}"#,
                ["rope_parameters.truncate", "true or false"],
            ),
            (
                r#""rope_parameters": {"type": "yarn", "factor": 2, "beta_fast": 0.5}"#,
                ["beta_fast", "0.5"],
            ),
            (
                r#""rope_parameters": {"type": "yarn", "factor": 2, "attention_factor": -1}"#,
                ["attention_factor", "found -1"],
            ),
            (
                r#""rope_scaling": {"type": "dynamic"}"#,
                ["rope_scaling.type", "dynamic"],
            ),
            (
                r#""rope_parameters": {"rope_type": "llama3", "factor": 8}"#,
                ["rope_parameters.low_freq_factor", "missing"],
            ),
            (
                r#""rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}"#,
                ["high_freq_factor", "found 1 and 4"],
            ),
            (
                r#""rope_parameters": {"rope_type": "longrope"}"#,
                ["longrope", "yarn"],
            ),
            (
                r#""rope_scaling": {"rope_type": "default", "type": "yarn"}"#,
                ["rope_scaling.type", "yarn"],
            ),
            (r#""rope_scaling": "yarn""#, ["rope_scaling", "object"]),
            (
                r#""rope_parameters": {"rope_theta": "5e5"}"#,
                ["rope_parameters.rope_theta", "number"],
            ),
            (
                r#""rope_parameters": {"rope_theta": 0}"#,
                ["rope_parameters.rope_theta", "greater than 0"],
            ),
            (r#""rope_theta": -1"#, ["rope_theta", "greater than 0"]),
            (
                r#""rope_parameters": {"full_attention": {"rope_theta": 5}}"#,
                ["full_attention", "one rope_type"],
            ),
            (
                r#""rope_parameters": {"partial_rotary_factor": 0.5}"#,
                ["partial_rotary_factor 0.5", "only 1"],
            ),
        ] {
            let message = with(keys).unwrap_err().to_string();
            for word in words.iter().chain(&["config.json"]) {
                assert!(message.contains(word), "{keys}: {message}");
            }
        }
    }

    /// The original context is read from the same keys as in `transformers`.
    #[test]
    fn the_first_context_has_three_places() {
        let context = |inside: &str, beside: &str| {
            let text =
                format!(r#"{{"rope_scaling": {{"type": "yarn", "factor": 2{inside}}}{beside}}}"#);
            match read(&text).unwrap().scaling {
                RopeScaling::Yarn {
                    original_max_position_embeddings,
                    ..
                } => original_max_position_embeddings,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(context("", ""), 512.0);
        let inside = r#", "original_max_position_embeddings": 128"#;
        assert_eq!(context(inside, ""), 128.0);
        let beside = r#", "original_max_position_embeddings": 64"#;
        assert_eq!(context(inside, beside), 64.0);
    }
}
