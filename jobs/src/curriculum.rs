//! A curriculum over the sources of `data.tasks`: the first is played alone, and another one enters when
//! those before it are solved. What has entered follows from committed episodes alone, so a resumed run
//! and any worker draw the same tasks.

use crate::config::CurriculumCtrl;
use serde::{Deserialize, Serialize};

/// `curriculum.json` of an iteration's advantage: what a later iteration draws from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curriculum {
    /// Sources that have entered, from the first of `data.tasks`.
    pub entered: usize,
    /// Solved and played episodes of each source by iteration, the newest last: at most
    /// `data.curriculum.iterations` of them.
    pub recent: Vec<Vec<(u32, u32)>>,
}

impl Curriculum {
    /// Before the first iteration: one source of so many.
    pub fn start(sources: usize) -> Self {
        Self {
            entered: 1.min(sources),
            recent: vec![Vec::new(); sources],
        }
    }

    /// After an iteration with these episodes: the source of each, and whether it was solved. Another
    /// source enters when each that has entered was played in `iterations` iterations and solved in a share
    /// of at least `solved` of their episodes.
    pub fn next(
        mut self,
        ctrl: &CurriculumCtrl,
        episodes: impl IntoIterator<Item = (usize, bool)>,
    ) -> Self {
        let mut played = vec![(0, 0); self.recent.len()];
        for (source, solved) in episodes {
            played[source].0 += u32::from(solved);
            played[source].1 += 1;
        }
        let most = ctrl.iterations as usize;
        for (recent, now) in self.recent.iter_mut().zip(played) {
            if now.1 > 0 {
                recent.push(now);
                recent.drain(..recent.len().saturating_sub(most));
            }
        }
        let solved = |recent: &Vec<(u32, u32)>| {
            let solved: u32 = recent.iter().map(|(solved, _)| solved).sum();
            let played: u32 = recent.iter().map(|(_, played)| played).sum();
            recent.len() == most
                && ctrl
                    .solved
                    .is_some_and(|share| f64::from(solved) >= share * f64::from(played))
        };
        if self.entered < self.recent.len() && self.recent[..self.entered].iter().all(solved) {
            self.entered += 1;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTRL: CurriculumCtrl = CurriculumCtrl {
        solved: Some(0.75),
        iterations: 2,
    };

    fn played(counts: &[(u32, u32)]) -> Vec<(usize, bool)> {
        let each = counts.iter().enumerate();
        each.flat_map(|(source, (solved, all))| (0..*all).map(move |k| (source, k < *solved)))
            .collect()
    }

    #[test]
    fn a_source_enters_when_all_before_it_are_solved_in_enough_iterations() {
        let mut state = Curriculum::start(3);
        for (counts, entered) in [
            (&[(4, 4)][..], 1),
            // 7 of 8 in two iterations.
            (&[(3, 4)], 2),
            // The second is new: one iteration says little.
            (&[(2, 2), (2, 2)], 2),
            // The second is solved in 4 of 6, the first in 3 of 4.
            (&[(1, 2), (2, 4)], 2),
            // 5 of 8 and 4 of 4: the first has to be solved again.
            (&[(1, 2), (4, 4)], 2),
            (&[(4, 4), (4, 4)], 3),
            // All have entered.
            (&[(4, 4), (4, 4), (4, 4)], 3),
        ] {
            state = state.next(&CTRL, played(counts));
            assert_eq!(state.entered, entered, "{counts:?}: {state:?}");
        }
        assert!(state.recent.iter().all(|recent| recent.len() <= 2));
    }

    #[test]
    fn an_iteration_without_episodes_of_a_source_leaves_its_record() {
        let before = Curriculum::start(2).next(&CTRL, played(&[(4, 4)]));
        assert_eq!(before.clone().next(&CTRL, []), before);
    }
}
