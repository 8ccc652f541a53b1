//! The toolbox's routes: those of most of AgentGym's servers. An action is a call in JSON.

use std::ops::RangeInclusive;

use agentgym_envs::server::http::Method;
use serde_json::json;

use super::game::Toolbox;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::games::Games;
use agentgym_envs::server::http::{Route, Routes};
use agentgym_envs::server::sessions::Table;

pub(super) struct ToolboxServer {
    seed: u64,
    terms: RangeInclusive<u32>,
    games: Games<Toolbox>,
}

impl ToolboxServer {
    pub(super) fn new(seed: u64, terms: RangeInclusive<u32>, options: &ServerOptions) -> Self {
        Self {
            seed,
            terms,
            games: Games::new(options),
        }
    }
}

impl Routes for ToolboxServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment Toolbox."))
        }),
        ("/create", Method::POST, |server, _| server.games.create()),
        ("/reset", Method::POST, |server, asked| {
            let start = |item: &str| Toolbox::start(server.seed, &server.terms, item);
            server.games.reset(asked, start)
        }),
        ("/step", Method::POST, |server, asked| {
            server.games.step(asked)
        }),
        ("/close", Method::POST, |server, asked| {
            server.games.close(asked)
        }),
        ("/observation", Method::GET, |server, asked| {
            server.games.observation(asked)
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        self.games.table()
    }
}
