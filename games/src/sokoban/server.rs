//! Sokoban's routes. RAGEN has no server; the routes follow most of AgentGym's.

use agentgym_envs::server::http::Method;
use serde_json::json;

use super::game::Sokoban;
use super::generator::Kind;
use super::room::Direction;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::games::Games;
use agentgym_envs::server::http::{Route, Routes};
use agentgym_envs::server::sessions::Table;

pub(super) struct SokobanServer {
    kind: Kind,
    seed: u64,
    games: Games<Sokoban>,
}

impl SokobanServer {
    pub(super) fn new(kind: Kind, seed: u64, options: &ServerOptions) -> Self {
        Self {
            kind,
            seed,
            games: Games::new(options),
        }
    }
}

impl Routes for SokobanServer {
    const ROUTES: &'static [Route<Self>] = &[
        ("/", Method::GET, |_, _| {
            Ok(json!("This is environment Sokoban."))
        }),
        ("/create", Method::POST, |server, _| server.games.create()),
        ("/reset", Method::POST, |server, asked| {
            let start = |item: &str| Sokoban::start(server.kind, server.seed, item);
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
        ("/available_actions", Method::GET, |_, _| {
            Ok(json!(Direction::ALL.map(Direction::name)))
        }),
    ];

    fn sessions(&self) -> &dyn Table {
        self.games.table()
    }
}
