//! Reads a run's artifacts without a worker or a queue: the rewards of one iteration, and the
//! number of its tokens that are trained on. Every byte is verified against its manifest.
//!
//! ```sh
//! cargo run --release --workspace --example read_run -- STORE RUN ITERATION
//! ```

use agentgym_jobs::artifact_names;
use agentgym_jobs::codec::decode;
use agentgym_jobs::episode::{Episode, Episodes, Sequence};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{Inputs, RunId, Store};
use anyhow::Context;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, run, iteration] = arguments.as_slice() else {
        anyhow::bail!("give STORE RUN ITERATION, for instance: runs smoke 1");
    };
    let (run, iteration): (RunId, u32) = (run.parse()?, iteration.parse()?);
    let store = Store::open(store).await?;
    let newest = store.newest_plan(&run, None).await?;
    let (revision, bytes) = newest.with_context(|| format!("the store has no run {run}"))?;
    let plan = Plan::stored(&run, revision, &bytes, store.url())?;
    println!(
        "{run}: {} iterations, at most {} rounds in iteration {iteration}",
        plan.iterations,
        plan.rounds_max(iteration.max(1))
    );

    let cache = tempfile::tempdir()?;
    let commits = store.commits(&run, iteration).await?;
    for slot in commits.into_iter().filter(|slot| slot.stage == "rollout") {
        let manifest = store.manifest(&slot).await?;
        let manifest = manifest.with_context(|| format!("{} is gone", slot.part))?;
        let inputs = Inputs::new(
            store.clone(),
            vec![("rollout".to_owned(), manifest)],
            cache.path(),
        );
        let bytes = inputs.bytes("rollout", artifact_names::EPISODES).await?;
        for episode in decode::<Episodes>(&bytes)?.into_vec() {
            show(&episode);
        }
    }
    Ok(())
}

fn show(episode: &Episode) {
    let tokens: usize = episode.sequences.iter().map(|s| s.token_ids.len()).sum();
    let trained: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
    println!(
        "{} sample {}: reward {}, {} turns, {trained} of {tokens} tokens are the policy's",
        episode.task,
        episode.sample,
        episode.reward,
        episode.turns.len()
    );
}
