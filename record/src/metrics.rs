//! `metrics.json` of each stage: figures that depend only on the stage's inputs. `docs/metrics.md`
//! explains every name.

mod episodes;
mod training;

pub use episodes::{
    AdvantageMetrics, EpisodeSummary, EvaluationMetrics, FilterMetrics, Kept, RewardMetrics,
    SelectMetrics,
};
pub use training::{
    CriticMetrics, DpoMetrics, DpoPoint, InitMetrics, Pairs, SftMetrics, SftPoint, TrainedTokens,
    UpdateMetrics, Validation, ValidationPoint,
};

use crate::{Error, Result};
use agentgym_jobs::artifact_names::METRICS;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{Inputs, Manifest, Store};
use serde::{Deserialize, Deserializer};

/// The metrics of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Metrics {
    Init(InitMetrics),
    Sft(SftMetrics),
    Dpo(DpoMetrics),
    Reward(RewardMetrics),
    Select(SelectMetrics),
    Filter(FilterMetrics),
    Advantage(Box<AdvantageMetrics>),
    Update(UpdateMetrics),
    CriticUpdate(CriticMetrics),
    Evaluation(Box<EvaluationMetrics>),
}

impl Metrics {
    /// Reads the metrics that a part committed; `None` if it wrote none.
    ///
    /// # Errors
    /// The store fails, or the document is not that of the stage.
    pub async fn of(store: &Store, id: PartId, manifest: &Manifest) -> Result<Option<Self>> {
        if !manifest.outputs.iter().any(|file| file.name == METRICS) {
            return Ok(None);
        }
        let inputs = vec![("part".to_owned(), manifest.clone())];
        let inputs = Inputs::new(store.clone(), inputs, std::env::temp_dir());
        let bytes = inputs.bytes("part", METRICS).await?;
        Self::parse(id, &bytes).map(Some)
    }

    /// The metrics of a part from their bytes.
    ///
    /// # Errors
    /// The document is not that of the stage.
    pub fn parse(id: PartId, bytes: &[u8]) -> Result<Self> {
        let unreadable = |e: serde_json::Error| Error::Unreadable {
            file: METRICS,
            part: id,
            why: e.to_string(),
        };
        let parsed = match id.stage {
            Stage::Init => serde_json::from_slice(bytes).map(Self::Init),
            Stage::Sft => serde_json::from_slice(bytes).map(Self::Sft),
            Stage::Dpo => serde_json::from_slice(bytes).map(Self::Dpo),
            Stage::Reward => serde_json::from_slice(bytes).map(Self::Reward),
            Stage::Select => serde_json::from_slice(bytes).map(Self::Select),
            Stage::Filter => serde_json::from_slice(bytes).map(Self::Filter),
            Stage::Advantage => serde_json::from_slice(bytes).map(Self::Advantage),
            Stage::Update => serde_json::from_slice(bytes).map(Self::Update),
            Stage::CriticUpdate => serde_json::from_slice(bytes).map(Self::CriticUpdate),
            Stage::Evaluate | Stage::EvaluateInit => {
                serde_json::from_slice(bytes).map(Self::Evaluation)
            }
            stage => {
                return Err(Error::NoSuch {
                    stage,
                    file: METRICS,
                });
            }
        };
        parsed.map_err(unreadable)
    }
}

/// A number that is not finite stands as null in JSON, and is read as NaN.
fn number<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(stage: Stage) -> PartId {
        PartId {
            iteration: 1,
            stage,
            part: 0,
        }
    }

    #[test]
    fn numbers_that_are_not_finite_and_what_older_programs_lack_are_read() {
        let text = r#"{"pg_loss": null, "clip_fraction": 0.5, "ppo_kl": 0.0, "entropy": 1.0, "kl_loss": 0.0,
            "ratio_max": 2.0, "grad_norm": null, "lr": 1e-4, "optimizer_steps": 2, "skipped_steps": 1,
            "trained_tokens": 9}"#;
        let Metrics::Update(read) = Metrics::parse(id(Stage::Update), text.as_bytes()).unwrap()
        else {
            panic!("another stage's");
        };
        assert!(read.pg_loss.is_nan() && read.grad_norm.is_nan());
        assert_eq!(
            (read.non_finite_steps, read.tokens.shared_tokens),
            (0, None)
        );
    }

    #[test]
    fn a_field_that_is_missing_or_of_another_type_is_named_with_file_and_part() {
        for (text, word) in [
            ("{}", "missing field `round`"),
            (r#"{"round": "x"}"#, "invalid type"),
        ] {
            let why = Metrics::parse(id(Stage::Select), text.as_bytes()).unwrap_err();
            let why = why.to_string();
            for word in [word, "metrics.json of 1/select/0"] {
                assert!(why.contains(word), "{word}: {why}");
            }
        }
        let why = Metrics::parse(id(Stage::Rollout), b"{}").unwrap_err();
        assert_eq!(why.to_string(), "rollout writes no metrics.json");
    }
}
