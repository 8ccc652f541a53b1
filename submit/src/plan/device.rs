//! Estimated peak memory of a worker on its GPU in each stage. What need not be there is left out:
//! models that nothing computes with, and sums of gradients that wait, leave a device that is full.

use crate::plan::memory::{ESTIMATED, Work, has};
use crate::plan::model_size::ModelSize;
use crate::plan::sizes::{evaluated_sequences, narrow};
use crate::text::bytes;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_model::{Device, Dtype, GPU_PREFILL_TOKENS};

/// The driver's context, the kernels, and cuBLAS with its scratch memory.
const LIBRARIES_BYTES: u128 = 700_000_000;

/// The GPU of the workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gpu {
    /// The type of products' operands.
    pub(crate) dtype: Dtype,
    /// Bytes of its memory, where it is in this machine.
    pub(crate) memory: Option<u64>,
}

impl Gpu {
    /// The GPU that `--device` means, if it means one.
    pub(crate) fn of(device: &str, dtype: Dtype) -> Option<Self> {
        let memory = Device::memory(device);
        let is_gpu = memory.is_some() || Device::gpu_number(device).is_some();
        is_gpu.then_some(Gpu { dtype, memory })
    }
}

/// Peak bytes on the GPU in the estimated stages that the plan has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuMemory(Vec<(Stage, u64)>);

impl GpuMemory {
    pub(crate) fn new(plan: &Plan, model: &ModelSize, dtype: Dtype) -> Self {
        let work = Work {
            plan,
            model,
            threads: 1,
            dtype: Dtype::F32,
        };
        let footprint = model.on_gpu(dtype);
        let trains = |model: &_| {
            let (tokens, checkpointed) = work.unit(model);
            footprint.training(tokens, checkpointed)
        };
        let generates = |sequences: u128| {
            let (rows, cached) = work.rows(sequences);
            footprint.generating(rows, GPU_PREFILL_TOKENS as u128, cached)
        };
        let most = |stage: Stage| match stage {
            Stage::Sft => trains(&work.taught()),
            Stage::Dpo => trains(&work.preferring()),
            Stage::Rollout => generates(work.part_sequences()),
            Stage::LogProbs => footprint.scoring(work.pack()),
            Stage::Update => trains(&work.policy()),
            Stage::CriticUpdate => {
                let (tokens, checkpointed) = work.unit(&work.value_model());
                model.critic_on_gpu(dtype).training(tokens, checkpointed)
            }
            _ => generates(evaluated_sequences(plan).into()),
        };
        let stages = ESTIMATED.into_iter().filter(|stage| has(plan, *stage));
        let counted = |stage| narrow(LIBRARIES_BYTES + footprint.network().max(most(stage)));
        Self(stages.map(|stage| (stage, counted(stage))).collect())
    }

    /// `≤ 3 GB in rollout, 5 GB in update`, and what to lower where that is more than `memory`.
    pub(crate) fn text(&self, plan: &Plan, gpu: Gpu) -> String {
        let each = self.0.iter();
        let each: Vec<String> = each
            .map(|(stage, most)| format!("{} in {}", bytes(*most), stage.name()))
            .collect();
        let largest = self.0.iter().max_by_key(|(_, most)| *most);
        let beyond = match (largest, gpu.memory) {
            (Some(&(stage, most)), Some(memory)) if most > memory => format!(
                "; it has {}, less than {} may take where sequences are as long as they may be: lower {}",
                bytes(memory),
                stage.name(),
                keys(plan, stage)
            ),
            _ => String::new(),
        };
        format!("in {}: ≤ {}{beyond}", gpu.dtype, each.join(", "))
    }

    /// `<stage>_gpu_memory_bytes`
    pub(crate) fn json(&self) -> impl Iterator<Item = (String, u64)> {
        let row =
            |(stage, most): &(Stage, u64)| (format!("{}_gpu_memory_bytes", stage.name()), *most);
        self.0.iter().map(row)
    }
}

/// The keys that lower what a stage takes on the GPU.
fn keys(plan: &Plan, stage: Stage) -> String {
    let length = match stage {
        Stage::Rollout | Stage::Evaluate => {
            return "jobs.cache_tokens or jobs.decode_rows".to_owned();
        }
        Stage::LogProbs => return "jobs.pack_tokens or data.max_response_length".to_owned(),
        Stage::Sft => "sft.max_length",
        Stage::Dpo => "dpo.max_length",
        _ => "data.max_response_length",
    };
    let config = &plan.config;
    let (model, critic) = (&config.actor_rollout_ref.model, &config.critic.model);
    let (prefix, checkpointed, adapted) = match stage {
        Stage::CriticUpdate => ("critic.model", critic.enable_gradient_checkpointing, true),
        _ => (
            "actor_rollout_ref.model",
            model.enable_gradient_checkpointing,
            plan.has_adapter(),
        ),
    };
    let mut keys = format!("jobs.unit_tokens or {length}");
    if !checkpointed {
        keys += &format!(", set {prefix}.enable_gradient_checkpointing=true");
    }
    if !adapted {
        keys += ", or train an adapter (actor_rollout_ref.model.lora_rank)";
    }
    keys
}

/// Refuses a model that does not fit into the GPU's memory even with the shortest sequences.
///
/// # Errors
/// The numbers, and the remedy.
pub(crate) fn check_fits(plan: &Plan, model: &ModelSize, gpu: Gpu) -> Result<(), String> {
    let Some(memory) = gpu.memory else {
        return Ok(());
    };
    let footprint = model.on_gpu(gpu.dtype);
    let (what, least) = match plan.config.run.pipeline {
        Pipeline::Eval => ("its weights", footprint.network()),
        _ => (
            "weights, their gradient and AdamW's moments",
            footprint.training_least(),
        ),
    };
    let least = narrow(LIBRARIES_BYTES + least);
    if least <= memory {
        return Ok(());
    }
    Err(format!(
        "it takes at least {} of the GPU's memory ({what}; products in {}), and the GPU has {}; take a \
         smaller model, train an adapter (actor_rollout_ref.model.lora_rank), --dtype bf16, or a larger GPU",
        bytes(least),
        gpu.dtype,
        bytes(memory)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model_size;
    use agentgym_jobs::config::ResolvedConfig;
    use std::path::Path;

    const B3: &str =
        "tiny?hidden=2048&layers=36&heads=16&kv_heads=2&intermediate=11008&vocab=151936";
    const B7: &str =
        "tiny?hidden=3584&layers=28&heads=28&kv_heads=4&intermediate=18944&vocab=152064";

    fn plan(model: &str, overrides: &[&str]) -> (Plan, ModelSize) {
        let mut overrides: Vec<String> = overrides.iter().map(|&o| o.to_owned()).collect();
        overrides.push(format!("actor_rollout_ref.model.path={model}"));
        let text = "
            run: {id: fits}
            actor_rollout_ref:
              actor: {ppo_mini_batch_size: 16}
              rollout: {n: 4, max_model_len: 2048}
              agentgym: {task_name: textcraft, env_addr: builtin}
            data: {train_batch_size: 16, max_prompt_length: 1024, max_response_length: 1024, tasks: [{env: textcraft, ids: 0..16}]}
            evaluation: {sets: [{name: all, env: textcraft, ids: 0..8}]}
            trainer: {total_training_steps: 1}
        ";
        let config =
            ResolvedConfig::parse("fits", Path::new("fits.yaml"), text, &overrides).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let size = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
        (plan, size)
    }

    /// What `nvidia-smi` calls 80 GB is 85.
    const SMALL: Gpu = Gpu {
        dtype: Dtype::Bf16,
        memory: Some(80_000_000_000),
    };

    #[test]
    fn three_billion_parameters_or_an_adapter_of_seven_fit_a_gpu_of_80_gb() {
        let checkpointed = "actor_rollout_ref.model.enable_gradient_checkpointing=true";
        let adapter = "actor_rollout_ref.model.lora_rank=64";
        for (model, overrides) in [(B3, &[][..]), (B3, &[checkpointed]), (B7, &[adapter])] {
            let (plan, size) = plan(model, overrides);
            let text = GpuMemory::new(&plan, &size, SMALL.dtype).text(&plan, SMALL);
            println!("{text}");
            assert!(!text.contains("lower"), "{text}");
            assert_eq!(check_fits(&plan, &size, SMALL), Ok(()));
        }
    }

    #[test]
    fn what_does_not_fit_is_said_with_the_keys_to_turn() {
        let (plan, size) = plan(B7, &[]);
        let why = check_fits(&plan, &size, SMALL).unwrap_err();
        for word in ["lora_rank", "80 GB", "--dtype bf16", "AdamW"] {
            assert!(why.contains(word), "{word}: {why}");
        }
        let text = GpuMemory::new(&plan, &size, SMALL.dtype).text(&plan, SMALL);
        for word in ["update", "lora_rank", "enable_gradient_checkpointing"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("jobs.threads"), "{text}");
    }

    #[test]
    fn a_policy_that_is_only_generated_with_needs_its_weights_alone() {
        let (plan, size) = plan(B7, &["run.pipeline=eval"]);
        assert_eq!(check_fits(&plan, &size, SMALL), Ok(()));
        let tight = Gpu {
            memory: Some(15_000_000_000),
            ..SMALL
        };
        let why = check_fits(&plan, &size, tight).unwrap_err();
        assert!(why.contains("its weights"), "{why}");
    }
}
