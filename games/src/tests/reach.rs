//! What a random policy and the solvers reach in the built-in environments: the numbers of
//! docs/environments.md.

use crate::draws::Draws;
use agentgym_envs::spec::spec;
use agentgym_envs::{ClientOptions, EnvClient, Session};

/// Something that could be done: one of the actions listed, or in TextCraft any recipe of the task
/// or any of their ingredients.
async fn possible(name: &str, session: &Session, first: &str, draws: &mut Draws) -> String {
    if name == "textcraft" {
        let mut all: Vec<String> = first
            .lines()
            .filter(|line| line.starts_with("craft "))
            .map(str::to_owned)
            .collect();
        let uses: Vec<String> = all
            .iter()
            .filter_map(|line| line.split_once(" using "))
            .flat_map(|(_, inputs)| inputs.split(", ").map(|input| format!("get {input}")))
            .collect();
        all.extend(uses);
        return all.swap_remove(draws.below(all.len()));
    }
    let listed = session.available_actions().await.expect("a list");
    let mut listed = listed.expect("actions are listed");
    listed.retain(|action| action != "check available actions");
    let chosen = listed.swap_remove(draws.below(listed.len()));
    match name {
        // Letters with spaces between them.
        "wordle" => chosen
            .chars()
            .map(String::from)
            .collect::<Vec<_>>()
            .join(" "),
        _ => chosen,
    }
}

async fn random(name: &'static str, items: i64) -> (u32, u32) {
    let address = match name {
        "textcraft" => "builtin".to_owned(),
        name => format!("builtin:{name}"),
    };
    let server = crate::start(&address).await.expect("a server");
    let known = spec(name).expect("known");
    let client = EnvClient::new(
        known,
        std::slice::from_ref(&server.url),
        ClientOptions::default(),
    );
    let client = client.expect("an address");
    let (mut solved, mut rounds) = (0, 0);
    for number in 0..items {
        let mut draws = Draws::new("random policy", &[name.as_bytes(), &number.to_le_bytes()]);
        // Of the maze there are 25, of which the last begins at the goal.
        let item = if name == "maze" { number % 25 } else { number };
        let mut session = client.open(item).await.expect("a session");
        let first = session.observation().to_owned();
        for _ in 0..known.rounds_max {
            let action = possible(name, &session, &first, &mut draws).await;
            let step = session
                .step(&format!("Action: {action}"))
                .await
                .expect("a step");
            rounds += 1;
            if step.success {
                solved += 1;
            }
            if step.done || step.success {
                break;
            }
        }
        session.close().await.expect("closed");
    }
    server.stop().await;
    (solved, rounds)
}

/// Items solved, and replies in all, of the plain style.
fn solver(address: &str, items: i64) -> (u32, u32) {
    let source = crate::parse(address).expect("valid").source;
    let solver = source.solver("").expect("a solver");
    let shown = (0..items).filter_map(|item| solver.demonstrate(item, ""));
    shown.fold((0, 0), |(solved, replies), shown| {
        let own = shown.conversations.iter().filter(|line| line.from == "gpt");
        (solved + 1, replies + own.count() as u32)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn random_policies_and_solvers_reach_what_the_documents_say() {
    let mut table = Vec::new();
    for (name, items, expected) in [
        ("textcraft", 300, 0.2..0.7),
        ("babyai", 400, 0.2..0.34),
        ("maze", 100, 0.0..0.3),
        ("wordle", 100, 0.9..1.1),
        ("sokoban", 200, 0.0..0.4),
    ] {
        let (solved, rounds) = random(name, items).await;
        let share = f64::from(solved) / items as f64;
        table.push(format!(
            "{name}: random {share:.3} of {items} items, {:.1} rounds",
            f64::from(rounds) / items as f64
        ));
        assert!(expected.contains(&share), "{table:#?}");
    }
    for (name, address, items, least) in [
        ("textcraft", "builtin", 300, 0.95),
        ("babyai", "builtin:babyai", 400, 0.7),
        ("searchqa", "builtin:searchqa", 128, 0.95),
        ("sokoban", "builtin:sokoban", 200, 1.0),
        ("toolbox", "builtin:toolbox", 300, 1.0),
    ] {
        let (solved, replies) = solver(address, items);
        let share = f64::from(solved) / items as f64;
        table.push(format!(
            "{name}: solver {share:.3} of {items} items, {:.1} replies",
            f64::from(replies) / f64::from(solved.max(1))
        ));
        assert!(share >= least, "{table:#?}");
    }
    eprintln!("{}", table.join("\n"));
}
