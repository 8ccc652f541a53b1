//! The cost of failures. `cargo bench --workspace --bench reliability [-- PART]` runs a fleet of
//! real processes on a real Redis and a real S3 server, kills them, and prints the tables of
//! docs/reliability.md; PART is one of `kills`, `recovery`, `drain`, `journal`, `idle`, `queue` and
//! `commits`; `-- kills 1` plays one run for each rate instead of three. Times are not asserted;
//! equality of the digests is.

mod control;
mod fleet;
mod journal;

use std::time::Duration;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` only checks that it runs.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let part = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    if wanted("kills") {
        let repeats = arguments.iter().find_map(|argument| argument.parse().ok());
        fleet::kills(repeats.unwrap_or(fleet::REPEATS)).await?;
    }
    if wanted("recovery") {
        fleet::recovery().await?;
    }
    if wanted("drain") {
        fleet::drain().await?;
    }
    if wanted("journal") {
        journal::journal().await?;
    }
    if wanted("idle") {
        control::idle().await?;
    }
    if wanted("queue") {
        control::queue().await?;
    }
    if wanted("commits") {
        control::commits().await?;
    }
    Ok(())
}

/// `p50`, `p99` and the largest, in milliseconds.
fn spread(mut spans: Vec<Duration>) -> String {
    spans.sort_unstable();
    let Some(last) = spans.len().checked_sub(1) else {
        return "nothing was measured".to_owned();
    };
    let at = |share: f64| spans[(last as f64 * share).round() as usize].as_secs_f64() * 1e3;
    format!(
        "p50 {:>8.1} ms   p99 {:>8.1} ms   max {:>8.1} ms   of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        spans.len()
    )
}
