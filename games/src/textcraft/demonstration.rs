//! Conversations that solve tasks, in the format of AgentGym's trajectory files.
//!
//! A conversation has the same shape as an episode of the trainer: the instruction and the first
//! observation are one human message, then model and environment alternate. It is played in a real
//! game, so the environment's messages are genuine.

use super::book::Name;
use super::player::Player;
use super::solver::{Gather, solve_with};
use super::world::World;
use crate::draws::Draws;
use agentgym_envs::demonstration::{Demonstration, Talk};
use agentgym_envs::spec::first_message;

/// Items that have no recipe among the questions about a book.
const RAWS_ASKED: usize = 2;

/// The style of a demonstration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Before the first action for another recipe, adds a line with the path from the goal to it:
    /// `Thought: <goal> using <inputs>; <ingredient> using <inputs>`.
    pub thought: bool,
    /// When raw items are fetched.
    pub gather: Gather,
    /// Chance, in percent, that a craftable ingredient is first requested with `get`, which is
    /// refused. That message is not trained on; the following ones are.
    pub refusals_percent: u32,
    /// 0 or 1: only the world's goal. More: up to this many of the world's craftable items in turn,
    /// each as the next goal of the same conversation. Such drills teach reading a recipe book with
    /// a fraction of the tokens that as many worlds would cost.
    pub goals_max: u32,
    /// Plays by asking for each ingredient and going down to its recipe where that is refused;
    /// its crafts do not repeat the count that the game ignores.
    pub asks: bool,
    /// With `asks`: chance, in percent, that it picks a recipe of its own instead of the goal's.
    pub own_percent: u32,
    /// With `asks`: chance, in percent, of a mistake that is not trained on; the replies after it
    /// show how to go on.
    pub slips_percent: u32,
    /// With `asks`: rounds after which it stops; 0 for none, so that it stops at the goal.
    pub rounds_max: u32,
    /// 0, or: instead of a play, up to this many questions about the book and their answers.
    pub questions_max: u32,
}

impl std::str::FromStr for Style {
    type Err = String;

    /// Parses a list such as `thought,refusals=20,goals=3,once` or `asks,own=90,rounds=14`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut style = Self::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || {
                let bad = |_| format!("style {word:?}: {value:?} is not a number");
                value.parse::<u32>().map_err(bad)
            };
            match name {
                "thought" => style.thought = true,
                "once" => style.gather = Gather::Once,
                "refusals" => style.refusals_percent = number()?.min(100),
                "goals" => style.goals_max = number()?,
                "asks" => style.asks = true,
                "own" => style.own_percent = number()?.min(100),
                "slips" => style.slips_percent = number()?.min(100),
                "rounds" => style.rounds_max = number()?,
                "questions" => style.questions_max = number()?,
                _ => {
                    return Err(format!(
                        "unknown style {name:?}; known: thought, once, refusals=PERCENT, goals=N, \
                         asks, own=PERCENT, slips=PERCENT, rounds=N, questions=N"
                    ));
                }
            }
        }
        let (own, slips) = (style.own_percent > 0, style.slips_percent > 0);
        if !style.asks && (own || slips || style.rounds_max > 0) {
            return Err(
                "own, slips and rounds are for a player that asks: add \"asks\"".to_owned(),
            );
        }
        if (own || slips) && style.rounds_max == 0 {
            return Err(
                "a player with goals of its own or with slips may never stop: add rounds=N"
                    .to_owned(),
            );
        }
        Ok(style)
    }
}

/// Solves a task and returns the conversation; `None` if its goal cannot be made.
pub fn demonstration(
    world: &World,
    item_id: i64,
    instruction: &str,
    style: Style,
) -> Option<Demonstration> {
    let mut draws = Draws::new("demonstration", &[&item_id.to_le_bytes()]);
    if style.questions_max > 0 {
        return Some(questions(world, item_id, style, &mut draws));
    }
    let goals = goals(world, style, &mut draws);
    let shown = World {
        goal: goals[0],
        ..world.clone()
    };
    let mut aloud = Aloud {
        game: world.game(),
        talk: Talk::new(first_message(instruction, &shown.observation())),
    };
    let mut player = match style.asks {
        true => {
            let habits = (style.own_percent, style.slips_percent);
            Some(Player::new(&world.book, goals[0], habits, &mut draws)?)
        }
        false => None,
    };
    for (index, goal) in goals.into_iter().enumerate() {
        if index > 0 {
            let next = format!("\n\nGoal: craft {}.", world.book.text(goal));
            aloud.talk.observation.push_str(&next);
        }
        match &mut player {
            None => solve_aloud(world, goal, style, &mut draws, &mut aloud)?,
            Some(player) => {
                if index > 0 {
                    player.take_up(goal, &mut draws)?;
                }
                play_aloud(player, style, &mut draws, &mut aloud)?;
            }
        }
    }
    Some(aloud.talk.told(format!("textcraft_{item_id}")))
}

fn goals(world: &World, style: Style, draws: &mut Draws) -> Vec<Name> {
    if style.goals_max < 2 {
        return vec![world.goal];
    }
    let mut all = world.book.goals().to_vec();
    draws.shuffle(&mut all);
    let wanted = draws.between(2..=style.goals_max) as usize;
    all.truncate(wanted.max(1));
    all
}

/// Plays one goal. It does not rely on items that earlier goals left in the inventory.
fn solve_aloud(
    world: &World,
    goal: Name,
    style: Style,
    draws: &mut Draws,
    aloud: &mut Aloud,
) -> Option<()> {
    let moves = solve_with(&world.book, goal, style.gather)?;
    let mut path: &[String] = &[];
    for step in &moves {
        let mut text = String::new();
        if step.path != path {
            path = &step.path;
            if step.makes != goal && draws.percent(style.refusals_percent as usize) {
                aloud.say(&format!("get 1 {}", world.book.text(step.makes)), "", false)?;
            }
            if style.thought {
                text = format!("Thought: {}\n", path.join("; "));
            }
        }
        aloud.say(&step.action, &text, true)?;
    }
    Some(())
}

/// Lets the player play until it has made its goal or stops.
fn play_aloud(
    player: &mut Player<'_>,
    style: Style,
    draws: &mut Draws,
    aloud: &mut Aloud,
) -> Option<()> {
    let mut said = String::new();
    let mut round = 0;
    loop {
        let turn = player.turn(&said, draws)?;
        let before = match (&turn.plan, style.thought) {
            (Some(plan), true) => format!("Thought: {plan}\n"),
            _ => String::new(),
        };
        aloud.say(&turn.action, &before, !turn.is_slip)?;
        let made = player.learn(&turn, &aloud.talk.observation, draws)?;
        said = turn.plan.unwrap_or(said);
        round += 1;
        if made || round == style.rounds_max {
            return Some(());
        }
    }
}

/// Questions about a book and their answers: reading without playing.
fn questions(world: &World, item_id: i64, style: Style, draws: &mut Draws) -> Demonstration {
    let book = &world.book;
    let mut raws: Vec<Name> = book
        .recipes()
        .iter()
        .flat_map(|recipe| recipe.inputs.iter().map(|input| input.name))
        .filter(|name| book.is_gettable(*name))
        .collect();
    raws.sort_unstable();
    raws.dedup();
    draws.shuffle(&mut raws);
    raws.truncate(RAWS_ASKED);
    let mut asked = book.goals().to_vec();
    asked.append(&mut raws);
    draws.shuffle(&mut asked);
    asked.truncate(style.questions_max as usize);
    let question = |name: Name| format!("How is {} made?", book.text(name));
    let first = asked.first().map(|name| question(*name));
    let lines = format!("Crafting commands:\n{}", world.lines.join("\n"));
    let first = format!("{lines}\n\n{}", first.unwrap_or_default());
    let mut talk = Talk::new(first_message("Answer from the book.", &first));
    for (at, name) in asked.iter().enumerate() {
        let next = asked.get(at + 1).map(|name| question(*name));
        let recipes: Vec<_> = book.recipes_of(*name).collect();
        let answer = match recipes.is_empty() {
            true => format!("Not made: get {}", book.text(*name)),
            false => book.way(recipes[draws.below(recipes.len())]),
        };
        talk.say(answer, true, next.unwrap_or_default());
    }
    talk.told(format!("textcraft_{item_id}"))
}

/// A game that is recorded as a conversation.
struct Aloud {
    game: super::game::Game,
    talk: Talk,
}

impl Aloud {
    fn say(&mut self, action: &str, before: &str, loss: bool) -> Option<()> {
        let reply = self.game.step(action).ok()?;
        let text = format!("{before}Action: {action}");
        self.talk.say(text, loss, reply.observation);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::worlds::Worlds;
    use super::*;

    #[test]
    fn a_drill_asks_for_several_items_of_one_book() {
        let style: Style = "thought,goals=3".parse().expect("valid");
        let world = Worlds::default().world(5);
        let drill = demonstration(&world, 5, "", style).expect("solvable");
        let asked: usize = drill
            .conversations
            .iter()
            .filter(|m| m.from == "human")
            .map(|m| m.value.matches("Goal: craft ").count())
            .sum();
        assert!((2..=3).contains(&asked), "{asked} goals");
        assert!(
            drill
                .conversations
                .iter()
                .all(|m| !m.value.contains("Could not"))
        );
    }

    fn told(id: u64, style: &str) -> Vec<(String, String)> {
        let style: Style = style.parse().expect("valid");
        let shown = demonstration(&Worlds::default().world(id), id as i64, "", style);
        let shown = shown.expect("solvable").conversations;
        let turns = shown.as_chunks::<2>().0.iter();
        turns
            .inspect(|[_, reply]| assert_eq!(reply.loss, Some(true)))
            .map(|[heard, reply]| (heard.value.clone(), reply.value.clone()))
            .collect()
    }

    #[test]
    fn who_asks_solves_every_world_and_is_trained_on_refusals() {
        let mut refused = 0;
        for id in 0..300 {
            let world = Worlds::default().world(id);
            let (mut game, turns) = (world.game(), told(id, "asks,thought"));
            let last = turns.len() - 1;
            for (at, (heard, reply)) in turns.iter().enumerate() {
                refused += usize::from(heard.starts_with("Could not find"));
                let action = reply.rsplit_once("Action: ").expect("an action").1;
                let counted = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
                assert!(
                    !action.strip_prefix("craft ").is_some_and(counted),
                    "{action}"
                );
                let played = game.step(action).expect("a command");
                assert!(
                    !played.observation.contains("enough items"),
                    "{id}: {action}"
                );
                assert_eq!(played.done, at == last, "{id}: {action}");
            }
            // An item is asked for once: then it is known to have a recipe.
            let mut asked: Vec<&str> = turns
                .iter()
                .filter_map(|(heard, _)| heard.strip_prefix("Could not find "))
                .collect();
            let all = asked.len();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!(asked.len(), all, "{id}");
        }
        assert!(refused > 300, "{refused}");
    }

    #[test]
    fn slips_are_not_trained_on_and_the_player_goes_on_after_them() {
        let style: Style = "asks,thought,slips=25,rounds=60".parse().expect("valid");
        let (mut slips, mut early, mut solved) = (0, 0, 0);
        for id in 0..300 {
            let world = Worlds::default().world(id);
            let shown = demonstration(&world, id as i64, "", style).expect("solvable");
            let mut game = world.game();
            for [_, reply] in shown.conversations.as_chunks::<2>().0 {
                let action = reply.value.rsplit_once("Action: ").expect("an action").1;
                let played = game.step(action).expect("a command");
                let slip = reply.loss == Some(false);
                slips += u32::from(slip);
                early += u32::from(slip && played.observation.contains("enough items"));
                // Whatever happened, a right action is never a craft with too little, and its
                // thoughts are lines of the book.
                assert!(
                    slip || !played.observation.contains("enough items"),
                    "{id}: {action}"
                );
                if let Some(thought) = reply.value.strip_prefix("Thought: ").filter(|_| !slip) {
                    let path = thought.lines().next().expect("a line").split("; ");
                    for recipe in path {
                        let line = |line: &String| line.ends_with(&format!(" {recipe}"));
                        assert!(world.lines.iter().any(line), "{id}: {recipe}");
                    }
                }
                solved += u32::from(played.done);
            }
        }
        assert!(
            slips > 300 && early > 50,
            "{slips} slips, {early} crafts too early"
        );
        assert_eq!(solved, 300);
        assert!("slips=5".parse::<Style>().is_err() && "asks,slips=5".parse::<Style>().is_err());
    }

    #[test]
    fn goals_of_its_own_are_carried_out_whatever_the_given_one_is() {
        let (mut first, mut crafts) = (0, 0);
        for id in 0..300 {
            let world = Worlds::default().world(id);
            let turns = told(id, "asks,thought,own=100,rounds=14");
            assert!(turns.len() <= 14);
            let goal = format!("Thought: {} using ", world.book.text(world.goal));
            first += usize::from(turns[0].1.starts_with(&goal));
            let mut game = world.game();
            for (_, reply) in &turns {
                let action = reply.rsplit_once("Action: ").expect("an action").1;
                let played = game.step(action).expect("a command");
                crafts += usize::from(played.observation.starts_with("Crafted"));
                assert!(
                    !played.observation.contains("enough items"),
                    "{id}: {action}"
                );
            }
        }
        // Books have four to eight lines, and some goals two of them.
        assert!(
            (35..90).contains(&first),
            "{first} of 300 begin with the goal"
        );
        assert!(crafts > 600, "{crafts}");
    }

    #[test]
    fn questions_are_about_the_book_and_no_goal_is_given() {
        for id in 0..50 {
            let world = Worlds::default().world(id);
            let turns = told(id, "questions=4");
            assert!((1..=4).contains(&turns.len()));
            for (heard, answer) in turns {
                assert!(!heard.contains("Goal:"), "{heard}");
                let asked = heard.rsplit_once("How is ").expect("a question").1;
                let asked = asked.strip_suffix(" made?").expect("a question");
                match answer.strip_prefix("Not made: get ") {
                    Some(raw) => assert_eq!(raw, asked),
                    None => {
                        let shown = |line: &String| line.ends_with(&format!(" {answer}"));
                        assert!(answer.starts_with(&format!("{asked} using ")), "{answer}");
                        assert!(world.lines.iter().any(shown), "{answer}");
                    }
                }
            }
        }
    }

    #[test]
    fn styles_are_read_and_refused_by_name() {
        let style: Style = "once, refusals=20".parse().expect("valid");
        assert_eq!((style.gather, style.refusals_percent), (Gather::Once, 20));
        assert!("loud".parse::<Style>().unwrap_err().contains("loud"));
        assert!("goals=many".parse::<Style>().unwrap_err().contains("many"));
        for (text, word) in [("own=90,rounds=9", "asks"), ("asks,own=90", "rounds=N")] {
            assert!(text.parse::<Style>().unwrap_err().contains(word), "{text}");
        }
    }
}
