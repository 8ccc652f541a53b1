//! A *group* is the set of episodes of one task in one iteration. This file collects
//! the members of each group and the statistics of their rewards. Only members that
//! exist are passed: a faulted episode is absent from the slices, so it cannot be
//! mistaken for a reward of zero, and a group may be smaller than planned.

use std::collections::BTreeMap;

use crate::error::{Error, all_finite, same_length};

/// The rewards of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The key under which the members were passed.
    pub id: u64,
    /// Indices of the members in the caller's slices, ascending.
    pub members: Vec<usize>,
    /// Mean reward.
    pub mean: f64,
    /// Unbiased standard deviation (divisor `n − 1`); 0 for a single member.
    pub std: f64,
    /// Whether every member has the same reward. Such a group does not show which
    /// action was better.
    pub is_uniform: bool,
}

impl Group {
    /// Whether the group gives a training signal: at least two rewards differ.
    pub fn is_informative(&self) -> bool {
        !self.is_uniform
    }
}

/// Collects the groups of `scores` (one reward per episode; `groups[i]` names
/// the group of episode `i`), in ascending order of their id.
///
/// Members need not be adjacent. Statistics are summed in index order.
pub fn collect(scores: &[f64], groups: &[u64]) -> Result<Vec<Group>, Error> {
    same_length("groups", groups.len(), scores.len())?;
    all_finite("score", scores)?;
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, &id) in groups.iter().enumerate() {
        members.entry(id).or_default().push(index);
    }
    Ok(members
        .into_iter()
        .map(|(id, members)| describe(id, members, scores))
        .collect())
}

fn describe(id: u64, members: Vec<usize>, scores: &[f64]) -> Group {
    let count = members.len() as f64;
    let first = scores[members[0]];
    let is_uniform = members.iter().all(|&member| scores[member] == first);
    // Exact: the rounded mean of equal numbers would leave a small nonzero advantage.
    if is_uniform {
        return Group {
            id,
            members,
            mean: first,
            std: 0.0,
            is_uniform,
        };
    }
    let mean = members.iter().map(|&member| scores[member]).sum::<f64>() / count;
    let squares = members
        .iter()
        .map(|&member| (scores[member] - mean).powi(2))
        .sum::<f64>();
    Group {
        id,
        members,
        mean,
        std: (squares / (count - 1.0)).sqrt(),
        is_uniform,
    }
}

/// How many groups of an iteration give a training signal, and why the others do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GroupCounts {
    /// All groups that have at least one member left.
    pub groups: usize,
    /// Groups with a single member left: nothing to compare with.
    pub single: usize,
    /// Groups of two or more whose members all got the same reward.
    pub uniform: usize,
    /// Groups of two or more whose members differ.
    pub informative: usize,
}

/// Counts the groups by the training signal that they give.
pub fn count(groups: &[Group]) -> GroupCounts {
    let mut counts = GroupCounts {
        groups: groups.len(),
        ..GroupCounts::default()
    };
    for group in groups {
        match group.members.len() {
            1 => counts.single += 1,
            _ if group.is_uniform => counts.uniform += 1,
            _ => counts.informative += 1,
        }
    }
    counts
}

/// For each episode, whether its group still has at least `members_min`
/// members. Fewer than two leave GRPO and RLOO without a baseline, so their
/// lone members are dropped rather than trained on raw rewards.
pub fn has_company(groups: &[u64], members_min: usize) -> Vec<bool> {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for &group in groups {
        *sizes.entry(group).or_default() += 1;
    }
    groups
        .iter()
        .map(|group| sizes.get(group).is_some_and(|&size| size >= members_min))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_members_find_their_group() {
        let groups = collect(&[1.0, 5.0, 0.0, 5.0], &[7, 3, 7, 3]).unwrap();
        assert_eq!(
            groups.iter().map(|group| group.id).collect::<Vec<_>>(),
            [3, 7]
        );
        assert_eq!(groups[1].members, [0, 2]);
        assert_eq!(groups[1].mean, 0.5);
        assert!((groups[1].std - 0.5f64.sqrt()).abs() < 1e-15);
        assert!(groups[0].is_uniform && !groups[1].is_uniform);
    }

    #[test]
    fn equal_rewards_leave_no_rounding_behind() {
        let group = &collect(&[0.1; 7], &[0; 7]).unwrap()[0];
        assert_eq!((group.mean, group.std), (0.1, 0.0));
    }

    #[test]
    fn groups_are_counted_by_what_they_teach() {
        let groups = collect(&[1.0, 1.0, 0.0, 1.0, 1.0], &[0, 0, 1, 1, 2]).unwrap();
        let expected = GroupCounts {
            groups: 3,
            single: 1,
            uniform: 1,
            informative: 1,
        };
        assert_eq!(count(&groups), expected);
        let teach: Vec<bool> = groups.iter().map(Group::is_informative).collect();
        assert_eq!(teach, [false, true, false]);
        assert_eq!(
            has_company(&[0, 0, 1, 1, 2], 2),
            [true, true, true, true, false]
        );
    }

    #[test]
    fn a_reward_that_is_no_number_is_refused() {
        let error = collect(&[0.0, f64::NAN], &[0, 0]).unwrap_err();
        assert!(error.to_string().contains("index 1"), "{error}");
        assert!(collect(&[0.0], &[0, 0]).is_err());
    }
}
