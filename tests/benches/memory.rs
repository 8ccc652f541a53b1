//! Peak memory by stage, predicted by `plan` and measured, for several training setups:
//! `cargo bench --workspace --bench memory`, or one of them with `-- NAME`. *Filled* is the
//! sequences' mean length as a share of the longest that the config allows; the prediction assumes
//! the longest. Nothing is asserted here; `suite/memory.rs` does that.

#[path = "../suite/memory.rs"]
mod memory;

use agentgym_model::{TinyShape, Tokenizer};
use memory::{FULL, Peak, Played, play};
use std::path::Path;

/// Some iterations of the quickstart, enough to fill a worker's cache of policies.
const QUICKSTART: [&str; 4] = [
    "configs/quickstart.yaml",
    "trainer.total_training_steps=4",
    "trainer.test_freq=0",
    "evaluation.sets=[]",
];

/// The model for [`FULL`], and the size of its gradient units.
const LARGE: [&str; 2] = [
    "actor_rollout_ref.model.path=tiny?hidden=256&layers=8&intermediate=1024&vocab=1024",
    "jobs.unit_tokens=4096",
];

/// Settings for [`half_billion`]: some minutes on two cores.
const FEW: [&str; 6] = [
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=false",
    "actor_rollout_ref.actor.ppo_epochs=1",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "evaluation.sets=[{name: one, env: textcraft, ids: 0..2}]",
];

/// Settings for a group of 8 with a prompt of about 1 000 tokens and answers of 200, which a random
/// policy always fills; with an instruction that takes up the prompt's room.
const GROUP: [&str; 9] = [
    "evaluation.sets=[]",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.max_tokens=200",
    "data.max_prompt_length=1000",
    "data.max_response_length=200",
    "actor_rollout_ref.rollout.max_model_len=1200",
    "algorithm.rounds_ctrl.rounds=1",
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
];
/// Repetitions of "look at the ".
const INSTRUCTION: usize = 150;
const ONE_UNIT: &str = "jobs.unit_tokens=4096";
const APART: &str = "actor_rollout_ref.actor.share_prefixes=false";

const CHECKPOINTED: &str = "actor_rollout_ref.model.enable_gradient_checkpointing=true";
const ADAPTER: &str = "actor_rollout_ref.model.lora_rank=8";

/// Writes a new policy of Qwen2.5-0.5B's shape with the tokenizer of the shipped base, which has
/// fewer ids.
fn half_billion(folder: &Path) -> anyhow::Result<()> {
    let base = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/base"));
    let policy = TinyShape::half_billion().policy(1, Tokenizer::load(base)?)?;
    Ok(policy.save(folder)?)
}

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let name = arguments.iter().find(|argument| !argument.starts_with('-'));
    let full = |more: &[&'static str]| [&FULL[..], &LARGE, more].concat();
    let folder = tempfile::tempdir()?;
    let model = format!("actor_rollout_ref.model.path={}", folder.path().display());
    let large = |more: &[&'static str]| [&FULL[..], &FEW, &[model.as_str()], more].concat();
    let instruction = format!(
        "actor_rollout_ref.agentgym.instruction={}",
        "look at the ".repeat(INSTRUCTION)
    );
    let group =
        |more: &[&'static str]| [&large(&[])[..], &GROUP, &[instruction.as_str()], more].concat();
    let runs: [(&str, Vec<&str>); 10] = [
        ("quickstart", QUICKSTART.to_vec()),
        ("critic", full(&[])),
        ("critic, checkpointed", full(&[CHECKPOINTED])),
        ("adapter", full(&[ADAPTER])),
        ("adapter, checkpointed", full(&[ADAPTER, CHECKPOINTED])),
        ("0.5B", large(&[])),
        ("0.5B, checkpointed", large(&[CHECKPOINTED])),
        ("0.5B, group", group(&[])),
        ("0.5B, group, one unit", group(&[ONE_UNIT])),
        ("0.5B, group apart", group(&[APART])),
    ];
    let runtime = tokio::runtime::Runtime::new()?;
    println!(
        "{:<22} {:>6} {:<14} {:>9} {:>9}  share",
        "run", "filled", "stage", "predicted", "measured"
    );
    for (run, arguments) in runs {
        if name.is_some_and(|name| name != run) {
            continue;
        }
        if arguments.contains(&model.as_str()) && !folder.path().join("config.json").exists() {
            half_billion(folder.path())?;
        }
        let Played { filled, peaks } = runtime.block_on(play(&arguments))?;
        for (stage, peak) in peaks {
            let Peak {
                predicted,
                measured,
            } = peak;
            println!(
                "{run:<22} {filled:>6.2} {stage:<14} {:>6.0} MB {:>6.0} MB  {:.2}",
                predicted / 1e6,
                measured / 1e6,
                measured / predicted
            );
        }
    }
    Ok(())
}
