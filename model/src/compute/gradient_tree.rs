//! The gradient of a minibatch: its units' gradients, summed in a fixed binary tree, so that the
//! result does not depend on the number of threads or of workers that share it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors::Dtype;

use crate::compute::fit::Room;
use crate::cpu::gradients::Gradients;
use crate::folder::parameter::numbers;
use crate::folder::tensor_file::{self, TensorFile};
use crate::gpu::{self, Gpu};
use crate::parallel::{self, ComputeOptions};
use crate::spare::Spare;
use crate::{Error, Result};

/// Gradients on the device that computed them: a GPU's stay in its memory until the units
/// of this worker are summed.
#[derive(Debug, Default)]
pub(crate) struct UnitGradients {
    pub(crate) host: Gradients,
    pub(crate) gpu: gpu::Gradients,
}

impl Gradients {
    /// A copy in a GPU's memory.
    pub(crate) fn upload(&self, gpu: &Gpu) -> Result<gpu::Gradients> {
        let uploaded = self.iter().map(|(name, gradient)| {
            let buffer = gpu.upload(gradient)?;
            Ok((name.to_owned(), buffer))
        });
        uploaded.collect()
    }
}

impl UnitGradients {
    /// None yet; those of the CPU take their memory from `spare`.
    pub(crate) fn new(spare: &Arc<Spare>) -> Self {
        UnitGradients {
            host: Gradients::new(spare),
            gpu: gpu::Gradients::default(),
        }
    }

    /// What one has on the device is added there: in either place the sum has the same bits.
    fn add(&mut self, mut other: Self, options: &ComputeOptions<'_>) -> Result<()> {
        for (name, gradient) in other.gpu {
            if let Some(own) = self.host.remove(&name) {
                gradient.add(&gradient.gpu().upload(&own)?)?;
            }
            match self.gpu.get(&name) {
                Some(own) => own.add(&gradient)?,
                None => {
                    self.gpu.insert(name, gradient);
                }
            }
        }
        if self.gpu.is_empty() {
            return self.host.add(other.host, options);
        }
        for (name, gradient) in other.host.drain() {
            match self.gpu.get(&name) {
                Some(own) => own.add(&own.gpu().upload(&gradient)?)?,
                None => self.host.add_one(&name, gradient),
            }
        }
        Ok(())
    }

    /// All of them, in host memory.
    fn fetch(self) -> Result<Gradients> {
        let mut gradients = self.host;
        for (name, gradient) in self.gpu {
            gradients.insert(&name, gradient.download(gradient.length())?);
        }
        Ok(gradients)
    }
}

impl From<Gradients> for UnitGradients {
    fn from(host: Gradients) -> Self {
        UnitGradients {
            host,
            gpu: gpu::Gradients::default(),
        }
    }
}

/// Most runs of a minibatch on a GPU.
const RUNS_MAX: usize = 8;

/// The units of a minibatch, in runs whose gradients are added one after another. A run is a node of
/// the tree; on the CPU, a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Units {
    count: usize,
    /// A run's level in the tree.
    level: u32,
}

impl Units {
    pub(crate) fn apart(count: usize) -> Self {
        Units { count, level: 0 }
    }

    /// At most [`RUNS_MAX`] runs: a device's memory has little room for sums beside the one that is
    /// under way.
    pub(crate) fn in_runs(count: usize) -> Self {
        let mut units = Units::apart(count);
        while units.runs() > RUNS_MAX {
            units.level += 1;
        }
        units
    }

    fn runs(self) -> usize {
        self.count.div_ceil(1 << self.level)
    }

    /// The runs that make up `some` units.
    ///
    /// # Errors
    /// They begin or end inside of a run.
    fn runs_of(self, some: &Range<usize>) -> Result<Range<usize>> {
        let bound = |unit: usize| match unit == self.count {
            true => Some(self.runs()),
            false => (unit.is_multiple_of(1 << self.level)).then_some(unit >> self.level),
        };
        match (bound(some.start), bound(some.end)) {
            (Some(start), Some(end)) => Ok(start..end),
            _ => Err(Error::Request(format!(
                "units {some:?} of {} are no whole runs",
                self.count
            ))),
        }
    }

    fn of_run(self, run: usize) -> Range<usize> {
        run << self.level..((run + 1) << self.level).min(self.count)
    }
}

/// The units of a minibatch of `count` that shard number `shard` of `shards` computes: whole runs,
/// on every device, so that different ones may share a minibatch.
pub fn shard_of_units(count: usize, shard: usize, shards: usize) -> Range<usize> {
    let units = Units::in_runs(count);
    let bound = |shard| units.of_run(units.runs() * shard / shards).start.min(count);
    bound(shard)..bound(shard + 1)
}

/// The gradient of a minibatch, summed over its units, and the total of the tokens that `run`
/// reports for its forward passes.
pub(crate) fn over_units(
    options: &ComputeOptions<'_>,
    units: Units,
    run: impl Fn(Range<usize>, &Room<'_>) -> Result<(Option<UnitGradients>, usize)> + Sync,
) -> Result<(Gradients, usize)> {
    let (sum, tokens) = over_some_units(options, units, 0..units.count, run)?;
    Ok((PartialSum::whole([sum])?, tokens))
}

/// The same, left on the device that computed it.
pub(crate) fn over_units_in_place(
    options: &ComputeOptions<'_>,
    units: Units,
    run: impl Fn(Range<usize>, &Room<'_>) -> Result<(Option<UnitGradients>, usize)> + Sync,
) -> Result<(UnitGradients, usize)> {
    let (tree, tokens) = add_units(options, units, 0..units.count, run)?;
    Ok((tree.into_root(), tokens))
}

/// The same over some of the minibatch's units.
pub(crate) fn over_some_units(
    options: &ComputeOptions<'_>,
    units: Units,
    some: Range<usize>,
    run: impl Fn(Range<usize>, &Room<'_>) -> Result<(Option<UnitGradients>, usize)> + Sync,
) -> Result<(PartialSum, usize)> {
    let (tree, tokens) = add_units(options, units, some, run)?;
    Ok((tree.into_sum()?, tokens))
}

fn add_units(
    options: &ComputeOptions<'_>,
    units: Units,
    some: Range<usize>,
    run: impl Fn(Range<usize>, &Room<'_>) -> Result<(Option<UnitGradients>, usize)> + Sync,
) -> Result<(GradientTree, usize)> {
    let tree = GradientTree::new(units.count);
    let runs = units.runs_of(&some)?;
    // A run says itself that it is alive, after each unit.
    let options = ComputeOptions {
        beat: &|| (),
        ..*options
    };
    let tokens = parallel::map_large(&options, runs.len(), |item| {
        let number = runs.start + item;
        let (gradients, tokens) = run(units.of_run(number), &|| tree.park())?;
        tree.add((units.level, number), gradients, &options)?;
        Ok(tokens)
    })?;
    Ok((tree, tokens.into_iter().sum()))
}

/// Node (level, index) of the tree covers the units [index·2^level, (index+1)·2^level).
type Node = (u32, usize);

/// Sums the units' gradients as they arrive, in any order, always along the same
/// tree. If T threads take the units in order, it holds O(T + log units) gradient sets; on a
/// device, which may have room for few, some of them in host memory.
struct GradientTree {
    units: usize,
    waiting: Mutex<BTreeMap<Node, Option<UnitGradients>>>,
}

impl GradientTree {
    fn new(units: usize) -> Self {
        GradientTree {
            units,
            waiting: Mutex::default(),
        }
    }

    /// Adds the gradients of a unit, or the sum of a whole node; `None` where nothing contributes.
    fn add(
        &self,
        (mut level, mut index): Node,
        mut sum: Option<UnitGradients>,
        options: &ComputeOptions<'_>,
    ) -> Result<()> {
        loop {
            let width = self.units.div_ceil(1 << level);
            let sibling = index ^ 1;
            // A last node without a sibling moves up unchanged; the root stays.
            if width == 1 || sibling < width {
                let mut waiting = self.waiting.lock().expect("no thread panics holding this");
                let Some(other) = waiting.remove(&(level, sibling)) else {
                    waiting.insert((level, index), sum);
                    return Ok(());
                };
                drop(waiting);
                let (left, right) = if index < sibling {
                    (sum, other)
                } else {
                    (other, sum)
                };
                sum = match (left, right) {
                    (Some(mut left), Some(right)) => {
                        left.add(right, options)?;
                        Some(left)
                    }
                    (left, right) => left.or(right),
                };
            }
            level += 1;
            index /= 2;
        }
    }

    /// Moves what waits on a device into host memory, which takes longer than leaving it there;
    /// says whether there was anything.
    fn park(&self) -> Result<bool> {
        let mut waiting = self.waiting.lock().expect("no thread panics holding this");
        let mut any = false;
        for sum in waiting.values_mut().flatten() {
            if !sum.gpu.is_empty() {
                any = true;
                let on_device = std::mem::take(sum);
                *sum = on_device.fetch()?.into();
            }
        }
        Ok(any)
    }

    /// The sum of all units, each of which was added.
    fn into_root(self) -> UnitGradients {
        let waiting = self.waiting.into_inner();
        let mut waiting = waiting.expect("no thread panics holding this");
        let root = waiting.pop_first().and_then(|(_, sum)| sum);
        root.unwrap_or_default()
    }

    fn into_sum(self) -> Result<PartialSum> {
        let waiting = self.waiting.into_inner();
        let waiting = waiting.expect("no thread panics holding this").into_iter();
        let fetched = waiting.map(|(node, sum)| Ok((node, sum.map(|s| s.fetch()).transpose()?)));
        Ok(PartialSum {
            units: self.units,
            nodes: fetched.collect::<Result<_>>()?,
        })
    }
}

/// The gradients of some of a minibatch's units, summed as far as possible without
/// the others: the topmost complete nodes of the minibatch's tree. For any division
/// of the units, the parts add up to the same bits ([`crate::Trainer::step_on`]).
#[derive(Debug, Clone, PartialEq)]
pub struct PartialSum {
    /// Units of the whole minibatch.
    units: usize,
    nodes: BTreeMap<Node, Option<Gradients>>,
}

const FILE: &str = "sum.safetensors";

impl PartialSum {
    /// The sum over all units of the minibatch.
    ///
    /// # Errors
    /// The parts are of different minibatches, or a unit is missing or covered twice.
    pub(crate) fn whole(parts: impl IntoIterator<Item = PartialSum>) -> Result<Gradients> {
        let wrong = |message: String| Err(Error::Request(message));
        let mut tree: Option<GradientTree> = None;
        let mut covered = 0;
        for part in parts {
            let tree = tree.get_or_insert_with(|| GradientTree::new(part.units));
            if tree.units != part.units {
                let (one, other) = (tree.units, part.units);
                return wrong(format!(
                    "gradients of minibatches of {one} and of {other} units do not add up"
                ));
            }
            for ((level, index), sum) in part.nodes {
                covered += (((index + 1) << level).min(part.units)).saturating_sub(index << level);
                let sum = sum.map(UnitGradients::from);
                tree.add((level, index), sum, &ComputeOptions::default())?;
            }
        }
        let Some(tree) = tree else {
            return Ok(Gradients::default());
        };
        let units = tree.units;
        let mut nodes = tree.into_sum()?.nodes;
        match (nodes.pop_first(), nodes.is_empty()) {
            (None, _) if units == 0 => Ok(Gradients::default()),
            (Some((_, root)), true) if covered == units => Ok(root.unwrap_or_default()),
            _ => wrong(format!(
                "the parts hold {covered} of the minibatch's {units} gradient units"
            )),
        }
    }

    /// Writes `sum.safetensors` into `dir`: the gradients of node (level, index) with the name
    /// prefix `level.index.`, flat, in the in-memory layout. The metadata list the nodes.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let mut entries = BTreeMap::new();
        for ((level, index), sum) in &self.nodes {
            for (name, gradient) in sum.iter().flat_map(Gradients::iter) {
                let entry = tensor_file::flat(gradient);
                entries.insert(format!("{level}.{index}.{name}"), entry);
            }
        }
        let nodes: Vec<&Node> = self.nodes.keys().collect();
        let nodes = serde_json::to_string(&nodes).expect("numbers serialise");
        let metadata = [("units", self.units.to_string()), ("nodes", nodes)];
        tensor_file::save(&dir.join(FILE), &entries, &metadata)
    }

    /// Reads what [`PartialSum::save`] wrote for parameters of these names and sizes.
    pub(crate) fn load(dir: &Path, sizes: &BTreeMap<String, usize>) -> Result<Self> {
        let path = dir.join(FILE);
        let file = TensorFile::open(&path)?;
        let said = (|| {
            let units: usize = file.said("units")?.parse().ok()?;
            let nodes: Vec<Node> = serde_json::from_str(file.said("nodes")?).ok()?;
            let fits = |&(level, index): &Node| {
                let first = index.checked_shl(level).filter(|_| level < usize::BITS);
                first.is_some_and(|first| first >> level == index && first < units)
            };
            nodes.iter().all(fits).then_some((units, nodes))
        })();
        let Some((units, nodes)) = said else {
            return Err(Error::Json {
                path: path.clone(),
                message: "the metadata lack the nodes of the sum; no gradient of a shard"
                    .to_owned(),
            });
        };
        let empty = |node| (node, None);
        let mut nodes: BTreeMap<Node, Option<Gradients>> = nodes.into_iter().map(empty).collect();
        for tensor in file.names() {
            let bad = |message: String| Error::Tensor {
                path: path.clone(),
                tensor: tensor.clone(),
                message,
            };
            let mut pieces = tensor.splitn(3, '.');
            let node = (|| {
                let (level, index) = (pieces.next()?, pieces.next()?);
                Some((level.parse().ok()?, index.parse().ok()?))
            })();
            let node = node.and_then(|node: Node| nodes.get_mut(&node));
            let (Some(node), Some(name)) = (node, pieces.next()) else {
                return Err(bad("belongs to no node of the metadata".to_owned()));
            };
            let dtype = file.info(&tensor).map_or(Dtype::F32, |(dtype, _)| dtype);
            let gradient = numbers(dtype, &file.read(&tensor)?).map_err(bad)?;
            match sizes.get(name) {
                Some(&size) if size == gradient.len() => {
                    node.get_or_insert_default().insert(name, gradient);
                }
                size => {
                    let expected = size.map_or("no such parameter is trained".to_owned(), |size| {
                        format!("the trained parameter has {size}")
                    });
                    return Err(bad(format!("has {} numbers, {expected}", gradient.len())));
                }
            }
        }
        Ok(PartialSum { units, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spare::Spare;

    fn unit(i: usize) -> Option<Gradients> {
        let mut gradients = Gradients::default();
        gradients.insert("w", vec![1.0 / (i + 1) as f32, 1.0]);
        (i % 5 != 3).then_some(gradients)
    }

    fn sum_of(count: usize, units: impl Iterator<Item = usize>) -> PartialSum {
        let tree = GradientTree::new(count);
        let options = ComputeOptions::default();
        units.for_each(|i| {
            let gradients = unit(i).map(UnitGradients::from);
            tree.add((0, i), gradients, &options).unwrap();
        });
        tree.into_sum().unwrap()
    }

    #[test]
    fn memory_comes_back_but_never_more_than_was_taken() {
        let spare = Spare::default();
        let filled = |mut numbers: Vec<f32>| {
            numbers.resize(3, 1.0);
            numbers
        };
        let (first, second) = (filled(spare.take(3)), filled(spare.take(3)));
        let places = [first.as_ptr(), second.as_ptr()];
        for numbers in [first, second, vec![2.0; 3], vec![2.0; 4]] {
            spare.give(numbers);
        }
        let again = [spare.take(3), spare.take(3)];
        assert!(again.iter().all(|numbers| numbers.is_empty()));
        assert!(
            again
                .iter()
                .all(|numbers| places.contains(&numbers.as_ptr()))
        );
        let fresh = [spare.take(3), spare.take(4)];
        assert!(
            fresh
                .iter()
                .all(|numbers| !places.contains(&numbers.as_ptr()))
        );
        // One gradient stays as the new weights; the old weights' memory is given back instead.
        drop(again);
        let weights = vec![0.5; 3];
        let place = weights.as_ptr();
        spare.give(weights);
        let back = spare.take(3);
        assert_eq!(back.as_ptr(), place);
    }

    #[test]
    fn any_order_of_arrival_gives_the_same_bits_and_every_unit_counts_once() {
        for units in 1..20 {
            let whole = |order: Vec<usize>| {
                let sum = sum_of(units, order.into_iter());
                PartialSum::whole([sum]).unwrap()
            };
            let forward = whole((0..units).collect());
            assert_eq!(forward, whole((0..units).rev().collect()));
            let count = (0..units).filter(|i| i % 5 != 3).count();
            assert_eq!(forward.get("w").unwrap()[1], count as f32);
        }
        let nothing = PartialSum::whole([sum_of(0, 0..0)]).unwrap();
        assert_eq!(nothing, Gradients::default());
    }

    #[test]
    fn any_division_gives_the_same_bits_also_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = BTreeMap::from([("w".to_owned(), 2)]);
        let parts = |units: usize, shards: usize| {
            let bound = move |shard| units * shard / shards;
            (0..shards).map(move |shard| sum_of(units, bound(shard)..bound(shard + 1)))
        };
        for (units, shards) in (1..20).flat_map(|units| (1..6).map(move |k| (units, k))) {
            let expected = PartialSum::whole(parts(units, 1)).unwrap();
            let kept = parts(units, shards).enumerate().map(|(shard, sum)| {
                let dir = dir.path().join(format!("{units}-{shards}-{shard}"));
                sum.save(&dir).unwrap();
                PartialSum::load(&dir, &sizes).unwrap()
            });
            let mut kept: Vec<PartialSum> = kept.collect();
            assert!(kept.iter().cloned().eq(parts(units, shards)));
            kept.reverse();
            assert_eq!(PartialSum::whole(kept.clone()).unwrap(), expected);
            // Every unit must be covered exactly once.
            kept.retain(|part| !part.nodes.is_empty());
            let first = kept[0].clone();
            let twice = kept.iter().cloned().chain([first]);
            assert!(PartialSum::whole(twice).is_err());
            assert!(kept.len() == 1 || PartialSum::whole(kept.drain(1..)).is_err());
        }
        let error = PartialSum::load(&dir.path().join("4-1-0"), &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("no such parameter"), "{error}");
    }
}
