//! What a trainer relies on. Run it with `cargo test`.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mygame"));
        let mut process = program.arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let address = line.trim().rsplit('/').next().unwrap().to_owned();
        Self { process, address }
    }

    fn post(&self, call: &str, body: Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = format!("POST /{call} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn begin(&self, item: u64) -> (u64, Value) {
        let id = self.post("create", json!({})).1["id"].as_u64().unwrap();
        let reply = self.post("reset", json!({"id": id, "data_idx": item})).1;
        (id, reply["observation"].clone())
    }

    fn step(&self, id: u64, action: &str) -> (u16, Value) {
        self.post("step", json!({"id": id, "action": action}))
    }

    fn play(&self, item: u64) -> Vec<Value> {
        let (id, seen) = self.begin(item);
        let mut replies = vec![seen];
        while replies.last().unwrap()["done"] != true {
            replies.push(self.step(id, "take 1").1);
        }
        assert_eq!(self.step(id, "take 1").0, 409);
        assert_eq!(self.post("close", json!({"id": id})).1, true);
        replies
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

#[test]
fn the_same_item_is_the_same_game_and_games_are_won_and_lost() {
    let server = Server::start();
    let games: Vec<Vec<Value>> = (0..40).map(|item| server.play(item)).collect();
    assert_eq!(server.play(7), games[7]);
    for reward in [0.0, 1.0] {
        let ends = games.iter().map(|game| &game.last().unwrap()["reward"]);
        assert!(ends.into_iter().any(|end| *end == reward));
    }
}

#[test]
fn what_is_no_move_changes_nothing_and_a_closed_session_is_gone() {
    let server = Server::start();
    let (id, seen) = server.begin(3);
    for action in ["take 4", "take", "", "give 1"] {
        let reply = server.step(id, action).1;
        let same = format!("That is no move. {}", seen.as_str().unwrap());
        assert_eq!(
            reply,
            json!({"observation": same, "reward": 0.0, "done": false})
        );
    }
    assert_eq!(server.post("close", json!({"id": id})).1, true);
    assert_eq!(server.post("close", json!({"id": id})).1, false);
    assert_eq!(server.step(id, "take 1").0, 404);
}
