//! Whether a mission is reached, as MiniGrid 2.3.1 sees it.
//!
//! What it remembers is part of the rules. Where things are is looked up at the start and after
//! every `drop`: who has taken the thing to go to still reaches the goal in front of its old place.
//! A clause of "and" that was reached stays so, so the whole mission is reached again at every
//! later move; other clauses are judged anew.

use crate::babyai::grid::{Grid, Kind, Lock, Pos, Primitive};
use crate::babyai::mission::{Desc, Goal, Order, Status, Task};

/// What is remembered of one task.
#[derive(Clone, Debug, PartialEq)]
struct Memory {
    /// Where the things to go to, or to put something next to, were last seen.
    places: Vec<Pos>,
    /// What was carried when the task was last judged.
    carried: Option<usize>,
}

/// A mission's memory: one for each task, in the order of the words.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verifier(Vec<Memory>);

/// The things of a task whose places count.
fn placed(task: &Task) -> &Desc {
    match task {
        Task::GoTo(desc) | Task::Pickup(desc, _) | Task::Open(desc, _) => desc,
        Task::PutNext(_, fixed) => fixed,
    }
}

fn places(grid: &Grid, task: &Task) -> Vec<Pos> {
    let things = placed(task).set.iter();
    things.filter_map(|thing| grid.things[*thing].at).collect()
}

impl Verifier {
    pub(crate) fn new(grid: &Grid, goal: &Goal) -> Self {
        let memory = |task: &Task| Memory {
            places: places(grid, task),
            carried: None,
        };
        Self(goal.tasks().into_iter().map(memory).collect())
    }

    /// Judges the state after a move.
    pub(crate) fn verify(&mut self, goal: &mut Goal, grid: &Grid, primitive: Primitive) -> Status {
        if primitive == Primitive::Drop {
            for (memory, task) in self.0.iter_mut().zip(goal.tasks()) {
                memory.places = places(grid, task);
            }
        }
        judge(goal, &mut self.0, grid, primitive)
    }
}

fn judge(goal: &mut Goal, memory: &mut [Memory], grid: &Grid, primitive: Primitive) -> Status {
    let (order, goals, done) = match goal {
        Goal::One(task) => return judge_task(task, &mut memory[0], grid, primitive),
        Goal::Two { order, goals, done } => (*order, goals, done),
    };
    let split = goals[0].tasks().len();
    let (first, second) = memory.split_at_mut(split);
    let mut parts = [first, second];
    let mut judge = |at: usize| judge(&mut goals[at], parts[at], grid, primitive);
    let [early, late] = match order {
        Order::And => {
            for (at, done) in done.iter_mut().enumerate() {
                *done = *done || judge(at) == Status::Reached;
            }
            return match done {
                [true, true] => Status::Reached,
                _ => Status::Going,
            };
        }
        Order::Before => [0, 1],
        Order::After => [1, 0],
    };
    if !done[early] {
        match judge(early) {
            Status::Reached => done[early] = true,
            other => return other,
        }
    }
    judge(late)
}

fn judge_task(task: &Task, memory: &mut Memory, grid: &Grid, primitive: Primitive) -> Status {
    let carried_before = std::mem::replace(&mut memory.carried, grid.carrying);
    let is_front = |place: &Pos| *place == grid.front();
    let reached = |yes: bool| if yes { Status::Reached } else { Status::Going };
    match task {
        Task::GoTo(_) => reached(memory.places.iter().any(is_front)),
        Task::Pickup(desc, strict) if primitive == Primitive::Pickup => match grid.carrying {
            Some(taken) if carried_before.is_none() && desc.set.contains(&taken) => Status::Reached,
            Some(_) if *strict => Status::Failed,
            _ => Status::Going,
        },
        Task::Open(desc, strict) if primitive == Primitive::Toggle => {
            let door = grid.thing_at(grid.front()).filter(|thing| {
                // A box that was opened may have left anything here.
                grid.things[*thing].kind == Kind::Door
            });
            match door {
                Some(door) if desc.set.contains(&door) && grid.things[door].lock == Lock::Open => {
                    Status::Reached
                }
                Some(_) if *strict => Status::Failed,
                _ => Status::Going,
            }
        }
        Task::PutNext(moved, _) if primitive == Primitive::Drop => {
            let dropped = carried_before.filter(|thing| moved.set.contains(thing));
            let at = dropped.and_then(|thing| grid.things[thing].at);
            reached(at.is_some_and(|at| {
                let beside = |place: &Pos| at.0.abs_diff(place.0) + at.1.abs_diff(place.1) == 1;
                memory.places.iter().any(beside)
            }))
        }
        _ => Status::Going,
    }
}
