//! What a run must say that lets a server generate: where it is, and how training takes into account
//! that an inference server's numbers are not ours. A chat API has none, and plays evaluations alone.

use super::keys::{KeySpec, Kind};
use super::tree::get;
use super::types::{Config, Environment, Numerics, Pipeline, RolloutEngine};
use crate::{Error, Result};
use serde_json::Value;

const ENGINE: &str = "actor_rollout_ref.rollout.engine";
const URL: &str = "actor_rollout_ref.rollout.server.url";
const MODEL: &str = "actor_rollout_ref.rollout.server.model";
const RANK: &str = "actor_rollout_ref.model.lora_rank";
const ADAPTER: &str = "actor_rollout_ref.model.lora_adapter_path";
const SUMMARY: &str = "actor_rollout_ref.agentgym.summary";
const DIALECT: &str = "actor_rollout_ref.rollout.server.dialect";

/// What changing a key does to a run with this config. The model of a chat API is what is evaluated:
/// another one is another run, while an inference server's is a name for the run's own policy.
pub(super) fn kind_in(tree: &Value, key: &KeySpec) -> Kind {
    let is_chat = || get(tree, ENGINE).is_some_and(|engine| engine == "chat");
    match key.path {
        MODEL if is_chat() => Kind::Identity,
        _ => key.kind,
    }
}

/// Everything that is missing is named at once.
pub(super) fn check(config: &Config) -> Result<()> {
    let (rollout, algorithm) = (&config.actor_rollout_ref.rollout, &config.algorithm);
    let server = &rollout.server;
    match rollout.engine {
        RolloutEngine::Own => return no_server(config, "own"),
        RolloutEngine::Candle => return no_server(config, "candle").and_then(|()| candle(config)),
        RolloutEngine::Chat => return chat(config),
        RolloutEngine::Server => {}
    }
    match config.run.pipeline {
        Pipeline::Rl => {}
        // They play no rollouts; `eval` takes any config.
        Pipeline::Sft | Pipeline::Dpo | Pipeline::Eval => return Ok(()),
        Pipeline::AgentEvol => {
            return Err(Error::value(
                ENGINE,
                "a server generates the rollouts of rl runs alone; set it to own",
            ));
        }
    }
    // Servers report the log-probs of the whole distribution at temperature 1, whatever they sample
    // with; at other settings those are not the log-probs that the ids were drawn with.
    let plain = rollout.temperature == 1.0 && rollout.top_k <= 0 && rollout.top_p >= 1.0;
    let wanted = [
        (config.run.numerics != Numerics::Any, "run.numerics=any"),
        (
            algorithm.rollout_correction.rollout_is.is_none(),
            "algorithm.rollout_correction.rollout_is=token (or sequence)",
        ),
        (
            config.guard.mismatch_max.is_none(),
            "guard.mismatch_max=0.5 (or the largest difference of log-probs to go on with)",
        ),
        (
            !plain,
            "actor_rollout_ref.rollout.temperature=1, top_k=-1 and top_p=1",
        ),
        (
            server.dialect.is_none(),
            "actor_rollout_ref.rollout.server.dialect=vllm (or sglang, llama_cpp, openai)",
        ),
        (
            server.url.is_none(),
            "actor_rollout_ref.rollout.server.url=http://…",
        ),
    ];
    if let Some(missing) = missing(&wanted, "; ") {
        return Err(Error::value(
            ENGINE,
            format!(
                "a server's numbers are not ours, so that training must correct for them and stop where they \
                 are too far off; set also {missing}"
            ),
        ));
    }
    address(config)
}

/// An environment whose actions are calls of tools is not played with everything.
pub(super) fn tools(config: &Config, name: &str, environment: &Environment) -> Result<()> {
    if config.spec(&environment.task_name)?.calls.is_empty() {
        return Ok(());
    }
    let (rollout, gym) = (
        &config.actor_rollout_ref.rollout,
        &config.actor_rollout_ref.agentgym,
    );
    let unfit = |key: &str, why: &str| {
        let what = format!("environment `{name}` is played by calls of tools; {why}");
        Err(Error::value(key, what))
    };
    let mut sets = config.evaluation.sets.iter();
    let is_evaluated = sets.any(|set| set.env == name);
    match (&rollout.engine, &gym.summary) {
        (RolloutEngine::Chat, _) if is_evaluated => unfit(
            ENGINE,
            "a chat API is given texts here and no tools: set this to own, server or candle, or leave the environment out",
        ),
        (_, Some(_)) => unfit(
            SUMMARY,
            "a request for a summary would stand in a tool's answer: leave this out; context_turns alone limits the context",
        ),
        _ => Ok(()),
    }
}

/// The agent behind a harness keeps its own conversation.
pub(super) fn harness(config: &Config, name: &str, environment: &Environment) -> Result<()> {
    if !config.spec(&environment.task_name)?.harness {
        return Ok(());
    }
    let gym = &config.actor_rollout_ref.agentgym;
    let unfit = [
        // It would train on conversations that are put together from texts.
        (config.run.pipeline == Pipeline::AgentEvol, "run.pipeline"),
        (
            gym.context_turns.is_some(),
            "actor_rollout_ref.agentgym.context_turns",
        ),
        (gym.summary.is_some(), SUMMARY),
        (
            gym.reply_prefix.is_some(),
            "actor_rollout_ref.agentgym.reply_prefix",
        ),
        (
            gym.lenient_actions,
            "actor_rollout_ref.agentgym.lenient_actions",
        ),
    ];
    match unfit.iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, key)) => Err(Error::value(
            *key,
            format!(
                "environment `{name}` is played by an agent behind a harness, which keeps its own \
                 conversations: leave this out, or the environment"
            ),
        )),
    }
}

/// An engine in this process asks no server.
fn no_server(config: &Config, engine: &str) -> Result<()> {
    let server = &config.actor_rollout_ref.rollout.server;
    match (&server.url, server.dialect) {
        (None, None) => Ok(()),
        (url, _) => Err(Error::value(
            if url.is_some() { URL } else { DIALECT },
            format!(
                "is not used where {ENGINE} is {engine}; set that to server, or leave this out"
            ),
        )),
    }
}

/// Candle plays what it cannot train.
fn candle(config: &Config) -> Result<()> {
    if config.run.pipeline != Pipeline::Eval {
        return Err(Error::value(
            ENGINE,
            "candle is for `agentgym-submit eval` alone (run.pipeline=eval): families that it computes and this program \
             does not are not trained. qwen2, qwen3, llama and mistral train, by engine own (or server, in rl runs)",
        ));
    }
    let model = &config.actor_rollout_ref.model;
    match model.has_adapter() {
        false => Ok(()),
        true => Err(Error::value(
            if model.lora_rank > 0 { RANK } else { ADAPTER },
            format!(
                "cannot be kept where {ENGINE} is candle, which adds no adapter to a model; leave it out"
            ),
        )),
    }
}

/// A chat API takes and gives texts: no ids, no log-probs.
fn chat(config: &Config) -> Result<()> {
    let (rollout, algorithm) = (&config.actor_rollout_ref.rollout, &config.algorithm);
    let (server, gym) = (&rollout.server, &config.actor_rollout_ref.agentgym);
    if config.run.pipeline != Pipeline::Eval {
        return Err(Error::value(
            ENGINE,
            "chat is for `agentgym-submit eval` alone (run.pipeline=eval): training needs token ids and \
             log-probs, and a chat API gives texts. rl runs take own or server, agentevol, sft and dpo runs own",
        ));
    }
    let wanted = [
        (
            server.url.is_none(),
            "actor_rollout_ref.rollout.server.url=http://…",
        ),
        (
            server.model.is_none(),
            "actor_rollout_ref.rollout.server.model=NAME",
        ),
    ];
    if let Some(missing) = missing(&wanted, " and ") {
        return Err(Error::value(
            ENGINE,
            format!("chat asks a model of an API by name; set also {missing}"),
        ));
    }
    let guard = &config.guard;
    let useless = [
        (server.dialect.is_some(), DIALECT),
        (rollout.top_k > 0, "actor_rollout_ref.rollout.top_k"),
        (
            algorithm.rollout_correction.rollout_is.is_some(),
            "algorithm.rollout_correction.rollout_is",
        ),
        (guard.mismatch_max.is_some(), "guard.mismatch_max"),
        (guard.entropy_min.is_some(), "guard.entropy_min"),
        (guard.entropy_max.is_some(), "guard.entropy_max"),
        (
            gym.context_turns.is_some(),
            "actor_rollout_ref.agentgym.context_turns",
        ),
        (
            gym.summary_request().is_some(),
            "actor_rollout_ref.agentgym.summary",
        ),
        (
            gym.reply_prefix.is_some(),
            "actor_rollout_ref.agentgym.reply_prefix",
        ),
    ];
    if let Some((_, key)) = useless.iter().find(|(is_set, _)| *is_set) {
        return Err(Error::value(
            *key,
            format!(
                "cannot be kept where {ENGINE} is chat: its requests are the whole conversation with \
                 temperature, top_p and a limit of tokens, and its answers have no log-probs; leave it out"
            ),
        ));
    }
    if server.price_input.is_some() != server.price_output.is_some() {
        return Err(Error::value(
            "actor_rollout_ref.rollout.server.price_input",
            "a price needs the other one too: give price_input and price_output, or neither",
        ));
    }
    address(config)
}

/// What is to be given of what is wanted, in one text.
fn missing(wanted: &[(bool, &str)], between: &str) -> Option<String> {
    let missing = wanted.iter().filter(|(is_missing, _)| *is_missing);
    let missing: Vec<&str> = missing.map(|(_, what)| *what).collect();
    (!missing.is_empty()).then(|| missing.join(between))
}

fn address(config: &Config) -> Result<()> {
    let server = &config.actor_rollout_ref.rollout.server;
    let url = server.url.as_deref().unwrap_or_default();
    if !(url.starts_with("http://") || url.starts_with("https://")) || url.contains(['?', '#']) {
        return Err(Error::value(
            URL,
            format!("must be an http:// or https:// address without ? or #, found {url:?}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::ResolvedConfig;
    use std::path::Path;

    const SERVER: [&str; 6] = [
        "actor_rollout_ref.rollout.engine=server",
        "actor_rollout_ref.rollout.server.url=http://127.0.0.1:1",
        "actor_rollout_ref.rollout.server.dialect=llama_cpp",
        "run.numerics=any",
        "algorithm.rollout_correction.rollout_is=token",
        "guard.mismatch_max=0.5",
    ];

    fn refused(overrides: &[&str]) -> Option<String> {
        let text =
            "{data: {tasks: [{env: textcraft, ids: 0..9}]}, actor_rollout_ref: {rollout: {n: 2}}}";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let read = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides);
        read.err().map(|e| e.to_string())
    }

    #[test]
    fn a_server_needs_all_that_corrects_for_it() {
        assert_eq!(refused(&SERVER), None);
        let all = refused(&SERVER[..1]).unwrap();
        for left_out in &SERVER[1..] {
            let given = SERVER.iter().filter(|k| *k != left_out);
            let given: Vec<&str> = given.copied().collect();
            let key = left_out.split('=').next().unwrap();
            let said = refused(&given).unwrap();
            assert!(said.contains(key), "{said}");
            assert!(all.contains(key), "{all}");
        }
        for (key, value) in [
            ("actor_rollout_ref.rollout.temperature=0.7", "temperature=1"),
            ("actor_rollout_ref.rollout.top_k=20", "top_k=-1"),
            ("actor_rollout_ref.rollout.top_p=0.9", "top_p=1"),
            ("run.pipeline=agentevol", "own"),
            ("actor_rollout_ref.rollout.server.url=ftp://x", "ftp://x"),
        ] {
            let said = refused(&[&SERVER[..], &[key]].concat()).unwrap();
            assert!(said.contains(value), "{key}: {said}");
        }
        let said = refused(&SERVER[1..2]).unwrap();
        assert!(
            said.contains("server.url") && said.contains("own"),
            "{said}"
        );
    }

    const CHAT: [&str; 4] = [
        "run.pipeline=eval",
        "actor_rollout_ref.rollout.engine=chat",
        "actor_rollout_ref.rollout.server.url=https://host/v1",
        "actor_rollout_ref.rollout.server.model=m",
    ];

    fn evaluated(overrides: &[&str]) -> Option<String> {
        let sets = ["evaluation.sets=[{name: x, env: textcraft, ids: 0..3}]"];
        refused(&[&CHAT[..], &sets, overrides].concat())
    }

    #[test]
    fn a_chat_api_is_for_evaluations_and_has_no_log_probs() {
        assert_eq!(evaluated(&[]), None);
        for pipeline in ["rl", "agentevol", "sft", "dpo"] {
            let said = evaluated(&[&format!("run.pipeline={pipeline}")]).unwrap();
            assert!(
                said.contains("agentgym-submit eval") && said.contains("own or server"),
                "{said}"
            );
        }
        for (change, key) in [
            ("actor_rollout_ref.rollout.server.url=null", "server.url"),
            (
                "actor_rollout_ref.rollout.server.model=null",
                "server.model",
            ),
            ("actor_rollout_ref.rollout.server.url=host", "http://"),
            ("actor_rollout_ref.rollout.server.dialect=vllm", "dialect"),
            (
                "actor_rollout_ref.rollout.server.price_input=1",
                "price_output",
            ),
            (
                "actor_rollout_ref.rollout.server.concurrent=0",
                "concurrent",
            ),
            ("actor_rollout_ref.rollout.top_k=5", "top_k"),
            (
                "algorithm.rollout_correction.rollout_is=token",
                "rollout_is",
            ),
            ("guard.mismatch_max=0.5", "mismatch_max"),
            ("guard.entropy_min=0.1", "entropy_min"),
            (
                "actor_rollout_ref.agentgym.context_turns=2",
                "context_turns",
            ),
        ] {
            let said = evaluated(&[change]).unwrap();
            assert!(said.contains(key), "{change}: {said}");
        }
    }

    #[test]
    fn candle_is_for_evaluations_of_a_whole_model() {
        let candle = |overrides: &[&str]| {
            let sets = "evaluation.sets=[{name: x, env: textcraft, ids: 0..3}]";
            let all = [
                "run.pipeline=eval",
                "actor_rollout_ref.rollout.engine=candle",
                sets,
            ];
            refused(&[&all[..], overrides].concat())
        };
        assert_eq!(candle(&[]), None);
        assert_eq!(candle(&["actor_rollout_ref.rollout.top_k=5"]), None);
        for pipeline in ["rl", "agentevol", "sft", "dpo"] {
            let said = candle(&[&format!("run.pipeline={pipeline}")]).unwrap();
            for word in [
                "rollout.engine",
                "agentgym-submit eval",
                "qwen2, qwen3, llama and mistral",
            ] {
                assert!(said.contains(word), "{pipeline}: {said}");
            }
        }
        for (change, word) in [
            ("actor_rollout_ref.model.lora_rank=4", "lora_rank"),
            (
                "actor_rollout_ref.model.lora_adapter_path=x",
                "lora_adapter_path",
            ),
            (
                "actor_rollout_ref.rollout.server.url=http://x",
                "server.url",
            ),
            ("actor_rollout_ref.rollout.server.dialect=vllm", "dialect"),
        ] {
            let said = candle(&[change]).unwrap();
            assert!(
                said.contains(word) && said.contains("candle"),
                "{change}: {said}"
            );
        }
    }

    /// What an API is asked for is what is evaluated; where it is asked may change.
    #[test]
    fn another_model_of_an_api_is_another_run() {
        let plan = |overrides: &[&str]| {
            let text = "{evaluation: {sets: [{name: x, env: textcraft, ids: 0..3}]}}";
            let all = [&CHAT[..], overrides].concat();
            let all: Vec<String> = all.iter().map(|o| (*o).to_owned()).collect();
            let read = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &all).unwrap();
            crate::plan::Plan::new(read, Path::new("")).unwrap()
        };
        let first = plan(&[]);
        let elsewhere = plan(&["actor_rollout_ref.rollout.server.url=http://other"]);
        assert_eq!(first.identity, elsewhere.identity);
        assert!(!first.same_bindings(&elsewhere));
        let other = "actor_rollout_ref.rollout.server.model=n";
        assert_ne!(first.identity, plan(&[other]).identity);
        let own = [
            "actor_rollout_ref.rollout.engine=own",
            "actor_rollout_ref.rollout.server.url=null",
        ];
        let named = |model: &str| plan(&[&own[..], &[model]].concat()).identity;
        assert_eq!(
            named(other),
            named("actor_rollout_ref.rollout.server.model=null")
        );
    }
}
