//! An episode's credit in words and numbers, for a terminal.

use super::explained::EpisodeCredit;

impl EpisodeCredit {
    /// The formula in words and numbers, one step a line.
    pub fn lines(&self) -> Vec<String> {
        let mut out = vec![format!(
            "{}  group {} sample {}  score {}",
            self.task, self.group, self.sample, self.score
        )];
        if let Some(turns) = &self.turn_rewards {
            out.push(format!("turn rewards {}", joined_numbers(turns)));
        }
        for term in &self.reward_terms {
            out.push(format!("reward + ({}): {}", term.value, term.formula));
        }
        if let Some(kl) = &self.kl {
            let sum: f64 = kl.penalties.iter().sum();
            out.push(format!(
                "KL penalty: each token's reward + (−{} · {}), mean {} over {} tokens; in all {sum}",
                kl.kl_coef,
                kl.estimator,
                kl.kl.map_or_else(|| "–".into(), |kl| kl.to_string()),
                self.policy_tokens(),
            ));
        }
        if let Some(explanation) = &self.explanation {
            out.extend(explanation.reasons.formula.iter().cloned());
        }
        if self.scrambled {
            out.push("a control then gave it the advantages of another episode (algorithm.scramble_advantages)".into());
        }
        if let Some(importance) = &self.importance {
            let weights = &importance.weights;
            let cut = weights.iter().filter(|w| **w >= importance.threshold);
            let (low, high) = range(weights);
            out.push(format!(
                "× importance weight min(exp(old − sampled), {}) by {}: {low} to {high}, {} of {} cut",
                importance.threshold,
                importance.level,
                cut.count(),
                weights.len()
            ));
        }
        match (self.left_out, self.advantage) {
            (Some(why), _) => out.push(format!("not trained on: {why}")),
            (None, Some(advantage)) => out.push(format!(
                "advantage {advantage}{} (bits {:016x})",
                match self.importance {
                    Some(_) => " before importance weights",
                    None => "",
                },
                advantage.to_bits()
            )),
            (None, None) => {}
        }
        if let (Some(slot), Some(place)) = (self.slot, &self.minibatch) {
            out.push(format!(
                "slot {slot}, minibatch {} of {} (slots {} to {}): {} over {} loss tokens in {} sequences, so that each of its \
                 tokens weighs {}",
                place.minibatch + 1,
                place.of,
                place.slots.0,
                place.slots.1.saturating_sub(1),
                place.aggregation,
                place.loss_tokens,
                place.sequences,
                match &place.weights[..] {
                    [one] => format!("{one:.3e}"),
                    all => {
                        let all: Vec<String> = all.iter().map(|w| format!("{w:.3e}")).collect();
                        format!("{}, by sequence", all.join(", "))
                    }
                }
            ));
        }
        out
    }

    fn policy_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|kept| **kept).count()
    }
}

fn joined_numbers(all: &[f64]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(" ")
}

fn range(all: &[f64]) -> (f64, f64) {
    all.iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
            (low.min(*x), high.max(*x))
        })
}
