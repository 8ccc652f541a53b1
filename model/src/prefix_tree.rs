//! The prefix tree of several sequences of token ids: what some of them have in common stands in it
//! once. A *node* is one token on one path from the beginning; a causal model computes the same
//! numbers for it whatever follows, so a forward pass over the nodes gives every sequence the bits
//! that it would get alone.
//!
//! The tree follows from the ids alone. Sequences are taken in the order of their ids, so that a
//! node's subtree is a run of consecutive nodes, and a sequence that is the beginning of another
//! one comes before it.

use crate::Error;
use std::ops::Range;

/// How many ids two sequences have in common at their beginning.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The nodes of a tree in packed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrefixTree {
    /// Runs of nodes on one path: the sequence it belongs to, and the positions that it adds to
    /// the path of the runs before it.
    pub(crate) runs: Vec<(usize, Range<usize>)>,
    /// The node of every token of every sequence.
    pub(crate) nodes: Vec<Vec<u32>>,
}

impl PrefixTree {
    pub(crate) fn new(sequences: &[&[u32]]) -> Self {
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|&number| sequences[number]);
        let mut runs = Vec::new();
        let mut nodes = vec![Vec::new(); sequences.len()];
        let (mut before, mut path, mut count): (&[u32], Vec<u32>, u32) = (&[], Vec::new(), 0);
        for number in order {
            let ids = sequences[number];
            let shared = common(before, ids);
            path.truncate(shared);
            path.extend(count..count + (ids.len() - shared) as u32);
            count += (ids.len() - shared) as u32;
            if shared < ids.len() {
                runs.push((number, shared..ids.len()));
            }
            nodes[number].clone_from(&path);
            before = ids;
        }
        PrefixTree { runs, nodes }
    }
}

/// Runs of consecutive `scopes` of at most `limit` nodes together, or of one larger scope, taken in
/// the order of their ids; each as the numbers of its scopes, ascending. A scope is one sequence or
/// several that must stay together.
///
/// A run repeats the nodes that its first scope has in common with the scope before it. Of all cuts
/// the one that repeats the fewest nodes is returned; of several, one with the fewest runs.
///
/// # Errors
/// The limit is 0.
pub fn cut_tree(scopes: &[Vec<&[u32]>], limit: usize) -> Result<Vec<Vec<usize>>, Error> {
    if limit == 0 {
        let message = "a limit of 0 tokens leaves no room for a sequence".to_owned();
        return Err(Error::Request(message));
    }
    let mut order: Vec<usize> = (0..scopes.len()).collect();
    order.sort_by_key(|&number| &scopes[number]);
    let sizes: Vec<usize> = order.iter().map(|&at| tree_nodes(&scopes[at])).collect();
    // Nodes that a scope shares with the one before it, at least.
    let shared: Vec<usize> = (0..order.len())
        .map(|at| match at {
            0 => 0,
            _ => most_common(&scopes[order[at - 1]], &scopes[order[at]]),
        })
        .collect();
    // Of the first `end` scopes: repeated nodes, runs, and where the last run begins.
    let mut best = vec![(0, 0, 0)];
    for end in 1..=order.len() {
        let (mut found, mut size) = (None, 0usize);
        for start in (0..end).rev() {
            size += sizes[start];
            if start + 1 < end {
                size -= shared[start + 1];
                if size > limit {
                    break;
                }
            }
            let (repeated, runs, _) = best[start];
            let candidate = (repeated + shared[start], runs + 1, start);
            found = Some(found.map_or(candidate, |other| candidate.min(other)));
        }
        best.push(found.expect("one scope alone is a run"));
    }
    let mut cuts = Vec::new();
    let mut end = order.len();
    while end > 0 {
        let start = best[end].2;
        let mut run = order[start..end].to_vec();
        run.sort_unstable();
        cuts.push(run);
        end = start;
    }
    cuts.reverse();
    Ok(cuts)
}

/// Nodes of the tree of `sequences`.
pub fn tree_nodes(sequences: &[&[u32]]) -> usize {
    let mut order = sequences.to_vec();
    order.sort_unstable();
    let all: usize = order.iter().map(|ids| ids.len()).sum();
    let pairs = order.iter().zip(order.iter().skip(1));
    all - pairs.map(|(a, b)| common(a, b)).sum::<usize>()
}

/// The most nodes that a sequence of `a` and one of `b` share.
fn most_common(a: &[&[u32]], b: &[&[u32]]) -> usize {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| common(a, b)));
    pairs.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Ids of few kinds, so that sequences have beginnings in common; some are empty.
    fn sequences() -> impl Strategy<Value = Vec<Vec<u32>>> {
        prop::collection::vec(prop::collection::vec(0u32..3, 0..8), 0..12)
    }

    fn slices(sequences: &[Vec<u32>]) -> Vec<&[u32]> {
        sequences.iter().map(Vec::as_slice).collect()
    }

    /// Every beginning of every sequence: the nodes of its tree, by definition.
    fn beginnings(sequences: &[&[u32]]) -> BTreeSet<Vec<u32>> {
        let all = sequences
            .iter()
            .flat_map(|ids| (1..=ids.len()).map(|n| ids[..n].to_vec()));
        all.collect()
    }

    #[test]
    fn a_drawn_tree() {
        let sequences: [&[u32]; 5] = [&[1, 2, 5, 6], &[1, 2, 3], &[1, 2, 5], &[], &[1, 2, 3]];
        let tree = PrefixTree::new(&sequences);
        assert_eq!(tree.runs, [(1, 0..3), (2, 2..3), (0, 3..4)]);
        assert_eq!(tree.nodes[0], [0, 1, 3, 4]);
        assert_eq!(tree.nodes[1], [0, 1, 2]);
        assert_eq!(tree.nodes[2], [0, 1, 3]);
        assert!(tree.nodes[3].is_empty());
        assert_eq!(tree.nodes[4], [0, 1, 2]);
    }

    /// The figures of docs/shared-prefixes.md.
    #[test]
    fn the_tree_of_the_documentation() {
        let answers = ["abde", "abdeg", "xyz"];
        let paths: Vec<Vec<u32>> = (answers.iter())
            .map(|answer| format!("pppppp{answer}").bytes().map(u32::from).collect())
            .collect();
        assert_eq!(tree_nodes(&slices(&paths)), 14);
        assert_eq!(paths.iter().map(|path| path.len() + 1).sum::<usize>(), 33);
    }

    #[test]
    fn cuts_go_where_least_is_repeated() {
        // Two groups with prompts of 3 and one of 2.
        let sequences: [&[u32]; 6] = [
            &[1, 1, 1, 5],
            &[1, 1, 1, 6],
            &[2, 2, 2, 5],
            &[2, 2, 2, 6],
            &[3, 3, 5],
            &[3, 3, 6],
        ];
        let scopes: Vec<Vec<&[u32]>> = sequences.iter().map(|ids| vec![*ids]).collect();
        let cut = |limit| cut_tree(&scopes, limit).unwrap();
        assert_eq!(cut(14), [vec![0, 1, 2, 3, 4, 5]]);
        // 10 nodes would take both first groups; 9 would fit the last two: both repeat nothing.
        assert_eq!(cut(10), [vec![0, 1], vec![2, 3, 4, 5]]);
        assert_eq!(cut(5), [vec![0, 1], vec![2, 3], vec![4, 5]]);
        // A group of five nodes is cut and repeats its prompt; the one of four is whole.
        assert_eq!(cut(4), [vec![0], vec![1], vec![2], vec![3], vec![4, 5]]);
        assert_eq!(cut(1).len(), 6, "a sequence above the limit stands alone");
        assert!(cut_tree(&scopes, 0).is_err());
        // Scopes are never split.
        let pairs: Vec<Vec<&[u32]>> = sequences.chunks(2).map(<[&[u32]]>::to_vec).collect();
        assert_eq!(cut_tree(&pairs, 9).unwrap(), [vec![0], vec![1, 2]]);
    }

    proptest! {
        /// Each beginning is one node, on a run that continues the path of its parent.
        #[test]
        fn every_beginning_is_a_node_once(sequences in sequences()) {
            let sequences = slices(&sequences);
            let tree = PrefixTree::new(&sequences);
            let mut node_of = std::collections::BTreeMap::new();
            for (ids, nodes) in sequences.iter().zip(&tree.nodes) {
                prop_assert_eq!(ids.len(), nodes.len());
                for (at, node) in nodes.iter().enumerate() {
                    let known = node_of.entry(ids[..=at].to_vec()).or_insert(*node);
                    prop_assert_eq!(&*known, node);
                }
            }
            let all: BTreeSet<u32> = node_of.values().copied().collect();
            prop_assert_eq!(all.len(), node_of.len());
            let count = beginnings(&sequences).len() as u32;
            prop_assert_eq!(all, (0..count).collect::<BTreeSet<u32>>());
            // Walking the runs with one path gives the nodes of each run's sequence.
            let (mut path, mut count) = (Vec::new(), 0);
            for (number, positions) in &tree.runs {
                path.truncate(positions.start);
                prop_assert_eq!(path.len(), positions.start);
                path.extend(count..count + positions.len() as u32);
                count += positions.len() as u32;
                prop_assert_eq!(&path, &tree.nodes[*number]);
            }
        }

        /// A cut holds every scope once, within the limit, and no division of the ordered scopes
        /// repeats less.
        #[test]
        fn cuts_are_within_the_limit_and_repeat_least(
            sequences in sequences(),
            limit in 1usize..30,
        ) {
            let scopes: Vec<Vec<&[u32]>> = sequences.iter().map(|ids| vec![ids.as_slice()]).collect();
            let cuts = cut_tree(&scopes, limit).unwrap();
            let of = |cut: &Vec<usize>| -> Vec<&[u32]> {
                cut.iter().map(|&at| sequences[at].as_slice()).collect()
            };
            let mut covered: Vec<usize> = cuts.concat();
            covered.sort_unstable();
            prop_assert_eq!(covered, (0..sequences.len()).collect::<Vec<_>>());
            let mut total = 0;
            for cut in &cuts {
                let count = beginnings(&of(cut)).len();
                prop_assert_eq!(count, tree_nodes(&of(cut)));
                prop_assert!(count <= limit || cut.len() == 1);
                total += count;
            }
            let mut ordered = sequences.clone();
            ordered.sort_unstable();
            for cuts in 0..1u32 << ordered.len().saturating_sub(1) {
                let mut pieces: Vec<Vec<&[u32]>> = vec![Vec::new()];
                for (at, ids) in ordered.iter().enumerate() {
                    if at > 0 && cuts >> (at - 1) & 1 == 1 {
                        pieces.push(Vec::new());
                    }
                    pieces.last_mut().unwrap().push(ids);
                }
                let sizes: Vec<usize> = pieces.iter().map(|piece| beginnings(piece).len()).collect();
                let fits = pieces.iter().zip(&sizes).all(|(p, size)| *size <= limit || p.len() == 1);
                prop_assert!(!fits || sizes.iter().sum::<usize>() >= total);
            }
        }
    }
}
