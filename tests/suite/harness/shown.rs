//! Demonstrations for agents behind a harness: a scripted player answers as a chat API, what it said in the
//! episodes that it solved is exported with its ids, and another run trains on exactly those.

use super::house::{Fate, House, prompt};
use crate::durability::said;
use crate::toolbox::warmed;
use agentgym_envs::demonstration::Demonstration;
use agentgym_envs::server::http::{Answer, Asked, Method, Route, Routes};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::{ServerHandle, ServerOptions, serve};
use agentgym_tests::program::{finish, program, workspace};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A chat API that knows how to solve the tasks of the toolbox.
struct Player {
    shown: Vec<Demonstration>,
    sessions: Sessions<()>,
    /// How tools were offered, and which calls the answers of tools named.
    seen: Mutex<BTreeSet<String>>,
}

impl Player {
    async fn start(tasks: i64) -> (Arc<Self>, ServerHandle) {
        let source = agentgym_games::parse("builtin:toolbox?terms=1").unwrap();
        let solver = source.source.solver("").unwrap();
        let instruction = agentgym_envs::spec("toolbox").unwrap().instruction;
        let shown = (0..tasks).map(|item| solver.demonstrate(item, instruction).unwrap());
        let options = ServerOptions::default();
        let player = Arc::new(Self {
            shown: shown.collect(),
            sessions: Sessions::new(&options),
            seen: Mutex::default(),
        });
        let address = "127.0.0.1:0".parse().unwrap();
        let app: Arc<Self> = Arc::clone(&player);
        let server = serve(app, "", address, options).await;
        (player, server.unwrap())
    }

    fn complete(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let messages = fields["messages"].as_array().unwrap();
        let task = messages[0]["content"].as_str().unwrap();
        let shown = self.shown.iter().find(|shown| {
            let first = prompt(&shown.conversations[0].value);
            task.starts_with(&*first) || task.starts_with(&*shown.conversations[0].value)
        });
        let (shown, mut seen) = (shown.unwrap(), self.seen.lock().unwrap());
        seen.insert(fields["tools"][0]["function"]["name"].to_string());
        for message in messages.iter().filter(|message| message["role"] == "tool") {
            seen.insert(message["tool_call_id"].to_string());
        }
        let replies = shown.conversations.iter().filter(|line| line.from == "gpt");
        let spoken = messages
            .iter()
            .filter(|message| message["role"] == "assistant");
        let reply = &replies.clone().nth(spoken.count()).unwrap().value;
        let call = reply.split_once("<tool_call>").unwrap().1;
        let call: Value = serde_json::from_str(call.split_once("</tool_call>").unwrap().0).unwrap();
        let function = json!({"name": call["name"], "arguments": call["arguments"].to_string()});
        let call = json!({"id": "any", "type": "function", "function": function});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 5});
        let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
        Ok(json!({"object": "chat.completion", "choices": [choice], "usage": usage}))
    }
}

impl Routes for Player {
    const ROUTES: &'static [Route<Self>] =
        &[("/v1/chat/completions", Method::POST, Self::complete)];
    const SLOW: bool = false;

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}

fn options(house: &House) -> Vec<String> {
    let spec = house.spec().display().to_string();
    vec![
        format!("actor_rollout_ref.agentgym.specs=['{spec}']"),
        format!(
            "actor_rollout_ref.agentgym.envs={{one: {{task_name: house, env_addr: '{}'}}}}",
            house.url()
        ),
        "evaluation.samples=1".to_owned(),
        "evaluation.greedy=false".to_owned(),
        "evaluation.sets=[{name: all, env: one, ids: 0..8}]".to_owned(),
        "data.tasks=[{env: one, ids: 0..8}]".to_owned(),
    ]
}

fn student(store: &Path, house: &House, file: &Path, more: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command.args(["run", "configs/toolbox.yaml", "--quiet", "--store"]);
    command.arg(store).args(options(house));
    command.args(["run.pipeline=sft", "run.id=taught", "sft.steps=2"]);
    command.args(["sft.warmup_steps=0", "evaluation.sets=[]"]);
    command.arg(format!("sft.sources=[{{file: '{}'}}]", file.display()));
    command.args(more).current_dir(workspace());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_scripted_player_showed_is_what_another_run_trains_on() {
    let house = House::open(Fate::Plays).await;
    let (player, server) = Player::start(8).await;
    let folder = TempDir::new().unwrap();
    let (store, file) = (
        folder.path().join("store"),
        folder.path().join("shown.json"),
    );
    let model = format!("actor_rollout_ref.model.path={}", warmed());
    let mut eval = program("agentgym-submit");
    eval.args([
        "eval",
        "configs/toolbox.yaml",
        "--quiet",
        "--json",
        "--store",
    ]);
    eval.arg(&store)
        .args(options(&house))
        .current_dir(workspace());
    eval.args([
        &model,
        "run.id=shown",
        "actor_rollout_ref.rollout.engine=chat",
    ]);
    eval.arg(format!(
        "actor_rollout_ref.rollout.server.url={}",
        server.url
    ));
    eval.arg("actor_rollout_ref.rollout.server.model=script");
    let told: Value = serde_json::from_str(&said(eval)).unwrap();
    let solved = &told["sets"]["all"]["score"]["avg"]["mean"];
    assert!(solved.as_f64().unwrap() >= 0.75, "{told}");
    let seen = player.seen.lock().unwrap().clone();
    assert!(
        seen.contains("\"get\"") && seen.contains("\"call_0\""),
        "{seen:?}"
    );
    assert!(!seen.contains("null"), "{seen:?}");

    let mut export = program("agentgym-submit");
    export.args(["export", "shown", "--success", "--store"]);
    export.arg(&store).arg("--trajectories").arg(&file);
    said(export);
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(rows.len() >= 6, "{}", rows.len());
    assert!(
        rows.iter()
            .all(|row| row["ids"]["trained"][0][0].as_u64() > Some(0))
    );

    said(student(&store, &house, &file, &[&model]));
    let to = folder.path().join("export").display().to_string();
    let mut export = program("agentgym-submit");
    export.args([
        "export",
        "taught",
        "--iteration",
        "0",
        "--to",
        &to,
        "--store",
    ]);
    export.arg(&store);
    said(export);
    let lines = std::fs::read_to_string(format!("{to}/sft_examples.jsonl")).unwrap();
    let known: BTreeSet<String> =
        (rows.iter().map(|row| row["ids"]["token_ids"].to_string())).collect();
    for line in lines.lines() {
        let example: Value = serde_json::from_str(line).unwrap();
        assert!(known.contains(&example["token_ids"].to_string()), "{line}");
    }

    // Ids say nothing to another tokenizer, and what is not theirs is refused.
    let base = "actor_rollout_ref.model.path=tiny?layers=3&vocab=600&template=tools".to_owned();
    let broken = folder.path().join("broken.json");
    let mut row = rows[0].clone();
    row["ids"]["trained"] = json!([[0, 3]]);
    std::fs::write(&broken, json!([row]).to_string()).unwrap();
    for (file, model, words) in [
        (&file, &base, "ids of another tokenizer"),
        (&broken, &model, "stretch 0 to 3"),
    ] {
        let other = TempDir::new().unwrap();
        let output = finish(student(other.path(), &house, file, &[model]));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && complaint.contains(words),
            "{complaint}"
        );
    }
}
