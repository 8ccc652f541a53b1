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
pub use agentgym_algorithms::evaluation::{Estimate, EvaluationScore};
use agentgym_jobs::artifact_names::METRICS;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::{Inputs, Manifest, Store};

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
            of: id.to_string(),
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

    /// What programs of all versions write: names, order, and what is left out.
    #[test]
    fn documents_keep_their_bytes() {
        let summary = r#""episodes":8,"success":0.5,"reward":0.25,"rounds_mean":3.0,"response_length_mean":40.0,"prompt_length_mean":20.0,"loss_tokens":90,"outcomes":{"failed":4,"solved":4},"env_faults":0,"env_fault_rate":0.0"#;
        let estimate = r#"{"mean":0.5,"low":0.25,"high":0.75,"of":4}"#;
        let score = format!(
            r#"{{"items":4,"items_lost":0,"avg":{estimate},"pass":{{"1":{estimate}}},"rounds_mean":3.0,"fault_rate":null}}"#
        );
        let by_env = r#""success_by_env":{"maze":0.5}"#;
        let tokens = r#""trained_tokens":9,"shared_tokens":2"#;
        for (stage, text) in [
            (Stage::Init, r#"{"pairs":3,"without_counterpart":0,"below_gap":0,"below_threshold":1,"too_long":1,"sft_rows_left_out":2}"#.to_owned()),
            (Stage::Init, r#"{"sft_rows_left_out":2}"#.to_owned()),
            (Stage::Sft, format!(r#"{{"steps":[0,2],"loss":0.5,"grad_norm":null,{tokens},"loss_tokens":7,"curve":[{{"step":2,"loss":0.5,"grad_norm":1.0,"lr":0.1}}],"non_finite_steps":1,"validation_conversations":1,"validation_tokens":5,"validation_loss":0.75,"validation":[{{"step":0,"epoch":1.0,"validation_loss":0.75}}]}}"#)),
            (Stage::Sft, r#"{"steps":[0,2],"loss":0.5,"grad_norm":1.0,"trained_tokens":9,"loss_tokens":7,"curve":[]}"#.to_owned()),
            (Stage::Dpo, format!(r#"{{"steps":[0,2],"loss":0.5,"accuracy":1.0,"chosen_reward":0.1,"rejected_reward":-0.1,"grad_norm":1.0,"non_finite_steps":0,{tokens},"curve":[{{"step":2,"loss":0.5,"accuracy":1.0,"lr":0.1}}]}}"#)),
            (Stage::Reward, r#"{"rewarded":3,"unrewarded":1,"reward":0.5,"environment_reward":0.25,"components":{"style":0.5}}"#.to_owned()),
            (Stage::Select, r#"{"round":1,"groups":4,"groups_mixed":2,"groups_uniform":2,"groups_selected":2,"groups_missing":2}"#.to_owned()),
            (Stage::Filter, format!(r#"{{{summary},"kept":4,"kept_new":3,"tasks_kept":2,"below_threshold":1,"duplicates":1,"too_long":0,{by_env}}}"#)),
            (Stage::Advantage, format!(r#"{{{summary},{by_env},"horizon":8,"groups_all_zero":1,"groups_all_one":1,"groups_mixed":2,"groups_excluded":0,"entropy":0.5,"ref_kl":null,"log_prob_mismatch_max":0.1,"log_prob_mismatch_kl":0.01,"importance_weight_mean":1.0,"importance_weight_cut":0.0,"kl_coef":0.1,"kl_in_reward":0.01,"sources_entered":2,"baseline_reward":0.5,"explained_variance":0.25}}"#)),
            (Stage::Update, format!(r#"{{"pg_loss":0.1,"clip_fraction":0.0,"ppo_kl":0.01,"entropy":0.5,"kl_loss":0.0,"ratio_max":2.0,"grad_norm":1.0,"lr":0.1,"optimizer_steps":2,"skipped_steps":1,"non_finite_steps":1,"dual_clip_fraction":0.0,{tokens}}}"#)),
            (Stage::CriticUpdate, format!(r#"{{"vf_loss":0.1,"vf_clip_fraction":0.0,"value_mean":0.5,"grad_norm":1.0,"lr":0.1,"optimizer_steps":2,"skipped_steps":0,"non_finite_steps":0,{tokens}}}"#)),
            (Stage::Evaluate, format!(r#"{{"set":"s","env":"maze","tasks":4,"success":0.5,"stderr":0.25,"success_greedy":null,"episodes":8,"faults":0,"reward":0.5,"rounds_mean":3.0,"horizon":8,"sampled":{{{summary}}},"score":{score},"categories":{{"d1":{score}}}}}"#)),
        ] {
            let read = Metrics::parse(id(stage), text.as_bytes()).unwrap();
            let written = match &read {
                Metrics::Init(of) => serde_json::to_string(of),
                Metrics::Sft(of) => serde_json::to_string(of),
                Metrics::Dpo(of) => serde_json::to_string(of),
                Metrics::Reward(of) => serde_json::to_string(of),
                Metrics::Select(of) => serde_json::to_string(of),
                Metrics::Filter(of) => serde_json::to_string(of),
                Metrics::Advantage(of) => serde_json::to_string(of),
                Metrics::Update(of) => serde_json::to_string(of),
                Metrics::CriticUpdate(of) => serde_json::to_string(of),
                Metrics::Evaluation(of) => serde_json::to_string(of),
            };
            assert_eq!(written.unwrap(), text, "{stage}");
        }
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
