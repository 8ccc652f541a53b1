//! Peak memory by stage, predicted by `plan` and measured, for several ways to train.
//! `cargo bench --workspace --bench memory`; `-- NAME` plays one of them. *Filled* is the
//! sequences' mean length as a share of the longest that the config allows, which the prediction
//! is for. Nothing is asserted here; `suite/memory.rs` does.

#[path = "../suite/memory.rs"]
mod memory;

use memory::{FULL, Peak, Played, play};

/// Some iterations of the quickstart: a worker that keeps as many policies as it ever will.
const QUICKSTART: [&str; 4] = [
    "configs/quickstart.yaml",
    "trainer.total_training_steps=4",
    "trainer.test_freq=0",
    "evaluation.sets=[]",
];

/// The model that plays [`FULL`], and how its gradients are cut.
const LARGE: [&str; 2] = [
    "actor_rollout_ref.model.path=tiny?hidden=256&layers=8&intermediate=1024&vocab=1024",
    "jobs.unit_tokens=4096",
];

const CHECKPOINTED: &str = "actor_rollout_ref.model.enable_gradient_checkpointing=true";
const ADAPTER: &str = "actor_rollout_ref.model.lora_rank=8";

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only wants to see it run.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let name = arguments.iter().find(|argument| !argument.starts_with('-'));
    let full = |more: &[&'static str]| [&FULL[..], &LARGE, more].concat();
    let runs: [(&str, Vec<&str>); 5] = [
        ("quickstart", QUICKSTART.to_vec()),
        ("critic", full(&[])),
        ("critic, checkpointed", full(&[CHECKPOINTED])),
        ("adapter", full(&[ADAPTER])),
        ("adapter, checkpointed", full(&[ADAPTER, CHECKPOINTED])),
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
