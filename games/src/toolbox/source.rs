//! Selects the tasks: from an address or the options of the subcommand.

use std::ops::RangeInclusive;
use std::sync::Arc;

use clap::Args;

use super::demonstration::{Play, demonstration};
use super::game::TERMS;
use super::server::ToolboxServer;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, number, range};
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, OpenSolver, ReadProgress,
};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::toolbox::SPEC;

const EXPECTED: &str = "expected a number from 1 to 4 or a range such as 1-3";

/// Every task is a function of its id and these values.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    seed: u64,
    terms: RangeInclusive<u32>,
}

impl GameTasks for Source {
    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        let server = ToolboxServer::new(self.seed, self.terms.clone(), options);
        Ok(Arc::new(server))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let (source, play) = (self.clone(), style.parse()?);
        Ok(Box::new(move || Ok(Arc::new(Calculates { source, play }))))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        Some("")
    }

    fn replica(&self, _: i64) -> Result<Box<dyn Replica>, String> {
        Err("a store of numbers has no picture; the answers to calls say all there is".to_owned())
    }
}

#[derive(Debug)]
struct Calculates {
    source: Source,
    play: Play,
}

impl Solver for Calculates {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        let Source { seed, terms } = &self.source;
        Some(demonstration(
            (*seed, terms),
            self.play,
            item_id,
            instruction,
        ))
    }
}

#[derive(Args)]
pub(crate) struct Arguments {
    /// Numbers that a task begins with, from 1 to 4, such as 2 or 1-3.
    #[arg(long, default_value = "1-3", value_parser = terms)]
    terms: RangeInclusive<u32>,
    /// Mixed into every task.
    #[arg(long, default_value_t = 0, value_parser = number::<u64>)]
    seed: u64,
}

fn terms(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    let within = |terms: &RangeInclusive<u32>| {
        !terms.is_empty() && TERMS.contains(terms.start()) && TERMS.contains(terms.end())
    };
    range(text).ok().filter(within).ok_or(EXPECTED)
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve a store and a calculator that are used by calls of tools";
    const PORT: u16 = 36009;
    const ADDRESSES: &'static [Address] = &[Address::new(":toolbox")];
    type Arguments = Arguments;

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        let Arguments { seed, terms } = arguments;
        Ok(Self { seed, terms })
    }
}

#[cfg(test)]
mod tests {
    use super::super::game::Toolbox;
    use super::*;
    use agentgym_envs::server::games::TextGame;

    #[test]
    fn every_task_is_solved_by_its_demonstration() {
        for style in ["", "wander=50"] {
            let source = Source {
                seed: 5,
                terms: TERMS,
            };
            let solver = source.solver(style).expect("a style")().expect("a solver");
            let mut calls = 0;
            for item in 0..300 {
                let told = solver.demonstrate(item, "Do it.").expect("solved");
                let mut game = Toolbox::start(5, &TERMS, &item.to_string());
                let mut lines = told.conversations.iter();
                let first = lines.next().expect("some");
                assert_eq!(
                    first.value,
                    format!("Do it.\n\n{}", game.last().observation)
                );
                assert_eq!(
                    (first.from, told.tools.as_ref()),
                    ("human", SPEC.offered().as_ref())
                );
                for line in lines {
                    if line.from == "gpt" {
                        assert_eq!(line.loss, Some(true), "{}", line.value);
                        let parsed = SPEC.parse(&line.value);
                        assert!(!parsed.normalised, "{}", line.value);
                        game.play(&parsed.action.expect("a call"));
                        calls += 1;
                    } else {
                        assert_eq!((line.from, &line.value), ("tool", &game.last().observation));
                    }
                }
                assert_eq!(
                    (game.last().reward, game.last().done),
                    (1.0, true),
                    "{told:?}"
                );
            }
            assert!((calls > 2400) != style.is_empty(), "{calls}");
        }
    }

    #[tokio::test]
    async fn an_address_selects_the_tasks_that_a_server_plays() {
        let address = "builtin:toolbox?seed=5&terms=4";
        let server = crate::start(address);
        let server = server.await.expect("a port");
        let http = agentgym_envs::http_client(&server.url)
            .build()
            .expect("a client");
        let asked = |path: &str, body: &str| {
            let url = format!("{}/{path}", server.url);
            let body = body.to_owned();
            let post = http.post(url).header("content-type", "application/json");
            async { post.body(body).send().await?.text().await }
        };
        asked("create", "").await.expect("a session");
        let told = asked("reset", r#"{"id": 0, "data_idx": 7}"#).await;
        let told: serde_json::Value = serde_json::from_str(&told.expect("a task")).expect("JSON");
        let own = Toolbox::start(5, &(4..=4), "7");
        assert_eq!(told["observation"], own.last().observation);
    }

    #[test]
    fn wrong_options_are_named() {
        for address in ["terms=0", "terms=2-5", "terms=3-2", "terms=all"] {
            let address = format!("builtin:toolbox?{address}");
            let refused = crate::parse(&address);
            let message = refused.expect_err(&address).to_string();
            assert!(message.contains(EXPECTED), "{message}");
        }
        let source = Source {
            seed: 0,
            terms: 1..=1,
        };
        for style in ["wander=91", "wander", "loud"] {
            assert!(source.solver(style).is_err(), "{style}");
        }
    }
}
