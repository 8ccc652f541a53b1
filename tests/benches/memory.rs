//! Peak memory by stage, predicted by `plan` and measured, for several ways to train.
//! `cargo bench --workspace --bench memory`; `-- NAME` plays one of them. Nothing is
//! asserted here; `suite/memory.rs` does.

#[path = "../suite/memory.rs"]
mod memory;

use memory::{FULL, Peak, peaks};

/// Two iterations of the quickstart.
const QUICKSTART: [&str; 4] = [
    "configs/quickstart.yaml",
    "trainer.total_training_steps=2",
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
        "{:<22} {:<14} {:>9} {:>9}  share",
        "run", "stage", "predicted", "measured"
    );
    for (run, arguments) in runs {
        if name.is_some_and(|name| name != run) {
            continue;
        }
        for (stage, peak) in runtime.block_on(peaks(&arguments))? {
            let Peak {
                predicted,
                measured,
            } = peak;
            println!(
                "{run:<22} {stage:<14} {:>6.0} MB {:>6.0} MB  {:.2}",
                predicted / 1e6,
                measured / 1e6,
                measured / predicted
            );
        }
    }
    Ok(())
}
