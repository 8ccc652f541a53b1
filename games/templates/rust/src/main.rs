//! An environment for AgentGym: a game of coins. Start it with `cargo run -- 36100`.

use axum::extract::{Path, State};
use axum::{Json, Router, body::Bytes, http::StatusCode, routing::post};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Both take 1 to 3 coins in turn; whoever takes the last one wins. No coins: no game, or over.
#[derive(Default)]
struct Game {
    coins: u64,
    random: u64,
}

impl Game {
    /// The same item is the same game, and the same moves bring the same replies.
    fn reset(&mut self, item: u64) -> Value {
        self.random = item;
        self.coins = 4 * (1 + self.draw(4)) + 1 + self.draw(3);
        json!({"observation": format!("Coins: {}.", self.coins)})
    }

    /// A number below `n` (SplitMix64).
    fn draw(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }

    fn step(&mut self, action: &str) -> Value {
        let taken = match action {
            "take 1" => 1,
            "take 2" => 2,
            "take 3" => 3,
            _ => u64::MAX,
        };
        let (seen, won) = if taken > self.coins {
            ("That is no move.".to_owned(), false)
        } else if taken == self.coins {
            self.coins = 0;
            ("You win.".to_owned(), true)
        } else {
            self.coins -= taken;
            let best = self.draw(2) * (self.coins % 4);
            let mine = [best, 1 + self.draw(self.coins.min(3))][usize::from(best == 0)];
            self.coins -= mine;
            (format!("I take {mine}."), false)
        };
        let seen = match self.coins {
            0 => seen,
            coins => format!("{seen} Coins: {coins}."),
        };
        json!({"observation": seen, "reward": f64::from(won), "done": self.coins == 0})
    }
}

type Reply = Result<Json<Value>, StatusCode>;
const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
/// Sessions, and the number of the latest.
type Sessions = Arc<Mutex<(HashMap<u64, Game>, u64)>>;

async fn call(State(all): State<Sessions>, Path(call): Path<String>, body: Bytes) -> Reply {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (games, latest) = &mut *all.lock().unwrap();
    if call == "create" {
        *latest += 1;
        games.insert(*latest, Game::default());
        return Ok(Json(json!({"id": *latest})));
    }
    let id = body["id"].as_u64().ok_or(UNPROCESSABLE)?;
    if call == "close" {
        return Ok(Json(json!(games.remove(&id).is_some())));
    }
    let game = games.get_mut(&id).ok_or(StatusCode::NOT_FOUND)?;
    let (item, action) = (body["data_idx"].as_u64(), body["action"].as_str());
    let reply = match (call.as_str(), item, action) {
        ("reset", Some(item), _) => game.reset(item),
        ("step", _, Some(action)) if game.coins > 0 => game.step(action),
        ("step", _, Some(_)) => return Err(StatusCode::CONFLICT),
        _ => return Err(UNPROCESSABLE),
    };
    Ok(Json(reply))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or("36100".to_owned());
    // No number of a server that ran before is given again.
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let sessions = Sessions::new(Mutex::new((HashMap::new(), now.as_millis() as u64)));
    let app = Router::new()
        .route("/{call}", post(call))
        .with_state(sessions);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await
}
