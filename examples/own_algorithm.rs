//! A custom algorithm on top of the crate's losses: every episode is compared with the median of
//! its group, and the policy loss is PPO's. It learns which of four answers is right.
//!
//! ```sh
//! cargo run --release --workspace --example own_algorithm
//! ```
//!
//! The policy here is four numbers. A training stage does the same with a language model: log-probs
//! and entropies in, their derivatives out, back-propagated as constants.

use agentgym_algorithms::advantages::broadcast;
use agentgym_algorithms::losses::{ActorLoss, ActorTokens, Denominator};

/// The score minus the median of the group: a single right answer among many wrong ones keeps all
/// of its reward, whatever the scores of the others.
fn advantages(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    scores.iter().map(|score| score - median).collect()
}

fn log_softmax(logits: &[f64; 4]) -> [f64; 4] {
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.map(|x| x - sum.ln())
}

fn main() -> anyhow::Result<()> {
    const RIGHT: usize = 2;
    const RATE: f64 = 1.0;
    let loss = ActorLoss::default();
    let mut logits = [0.0; 4];
    for iteration in 1..=30 {
        let old = log_softmax(&logits);
        // A group that contains every answer once: nothing here is random.
        let answers = [0, 1, 2, 3];
        let scores = answers.map(|answer| f64::from(answer == RIGHT));
        let denominator = Denominator::of([1; 4]);
        let mut gradient = [0.0; 4];
        for (answer, advantage) in answers.into_iter().zip(advantages(&scores)) {
            let output = loss.evaluate(
                &ActorTokens {
                    log_probs: &[old[answer]],
                    entropies: &[0.0],
                    old_log_probs: &[old[answer]],
                    ref_log_probs: None,
                    advantages: &broadcast(advantage, &[true]),
                    loss_mask: &[true],
                },
                denominator,
            )?;
            // d log_prob(answer) / d logit(i) = [i = answer] − probability(i)
            let by_log_prob = output.coefficients.log_probs[0];
            for (i, by_logit) in gradient.iter_mut().enumerate() {
                *by_logit += by_log_prob * (f64::from(i == answer) - old[i].exp());
            }
        }
        for (logit, by_logit) in logits.iter_mut().zip(gradient) {
            *logit -= RATE * by_logit;
        }
        if iteration % 10 == 0 {
            let probability = log_softmax(&logits)[RIGHT].exp();
            println!("iteration {iteration:2}: the right answer has probability {probability:.3}");
        }
    }
    let probability = log_softmax(&logits)[RIGHT].exp();
    anyhow::ensure!(probability > 0.8, "nothing was learnt: {probability}");
    Ok(())
}
