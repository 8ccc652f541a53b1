//! What inference servers want to be asked and how they answer: a row for each kind. Everything here
//! is a pure function on JSON, and an answer is used only if it is wholly what was asked for.

use agentgym_jobs::config::ServerDialect;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A message that a server is to generate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// All ids before it.
    pub(crate) prompt: &'a [u32],
    /// Most ids of it.
    pub(crate) tokens_max: usize,
    /// The likeliest id each time; else sampled at temperature 1, without a cut.
    pub(crate) greedy: bool,
    /// Servers may sample the same again for the same seed; nothing relies on it.
    pub(crate) seed: u32,
    /// Ids that end it.
    pub(crate) stop_ids: &'a [u32],
}

/// A message that a server has generated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    /// Its ids, a sampled stop id included.
    pub(crate) token_ids: Vec<u32>,
    /// Log-probs of the whole distribution, one for each id.
    pub(crate) log_probs: Vec<f32>,
    /// Places whose log-prob was left out and is to be asked for ([`distribution_body`]).
    pub(crate) unsaid: Vec<usize>,
    /// The last id is a stop id.
    pub(crate) ended: bool,
    /// The server ends messages with its last id, and the policy does not: the message goes on.
    pub(crate) goes_on: bool,
}

/// What an answer says, before it is compared with what was asked.
#[derive(Debug, Default)]
struct Said {
    token_ids: Option<Vec<u32>>,
    log_probs: Option<Vec<f64>>,
    /// Places that have none; the number there is not to be read.
    unsaid: BTreeSet<usize>,
    /// The ids that the log-probs belong to.
    scored_ids: Option<Vec<u32>>,
    prompt_ids: Option<Vec<u32>>,
    prompt_tokens: Option<u64>,
    /// `stop`, `length`, or what the server calls something else.
    finish: String,
    /// The id that ended it is surely among its ids.
    end_is_said: bool,
}

/// How a message is asked for.
pub(crate) fn generate_route(dialect: ServerDialect) -> &'static str {
    match dialect {
        ServerDialect::Vllm => "/inference/v1/generate",
        ServerDialect::Sglang => "/generate",
        ServerDialect::LlamaCpp => "/completion",
        ServerDialect::Openai => "/v1/completions",
    }
}

/// Where the longest context is told, and under which pointers.
pub(crate) fn context_route(dialect: ServerDialect) -> (&'static str, &'static [&'static str]) {
    match dialect {
        ServerDialect::Vllm | ServerDialect::Openai => ("/v1/models", &["/data/0/max_model_len"]),
        ServerDialect::Sglang => ("/get_server_info", &["/context_length"]),
        ServerDialect::LlamaCpp => ("/props", &["/default_generation_settings/n_ctx"]),
    }
}

/// How a server is made to read the policy in a folder again: routes and bodies, one after another.
/// Empty where it has to be started anew.
pub(crate) fn reload_routes(dialect: ServerDialect, folder: &str) -> Vec<(&'static str, Value)> {
    match dialect {
        // With VLLM_SERVER_DEV_MODE=1; it reads the folder again that it was started with.
        ServerDialect::Vllm => vec![
            ("/collective_rpc", json!({"method": "reload_weights"})),
            ("/reset_prefix_cache?reset_running_requests=true", json!({})),
        ],
        ServerDialect::Sglang => vec![(
            "/update_weights_from_disk",
            json!({"model_path": folder, "flush_cache": true}),
        )],
        ServerDialect::LlamaCpp | ServerDialect::Openai => vec![],
    }
}

/// The body of the request for a message; `model` is the policy's name there.
pub(crate) fn body(dialect: ServerDialect, ask: &Ask<'_>, model: Option<&str>) -> Value {
    let temperature = if ask.greedy { 0.0 } else { 1.0 };
    let (prompt, stop) = (ask.prompt, ask.stop_ids);
    let mut body = match dialect {
        ServerDialect::Vllm => json!({
            "token_ids": prompt,
            "stream": false,
            "sampling_params": {
                "max_tokens": ask.tokens_max, "temperature": temperature, "top_p": 1.0, "top_k": 0,
                "min_p": 0.0, "seed": ask.seed, "logprobs": 1, "stop_token_ids": stop,
                "skip_special_tokens": false,
            },
        }),
        ServerDialect::Sglang => json!({
            "input_ids": prompt,
            "stream": false,
            "return_logprob": true,
            "logprob_start_len": -1,
            "sampling_params": {
                "max_new_tokens": ask.tokens_max, "temperature": temperature, "top_p": 1.0, "top_k": -1,
                "min_p": 0.0, "stop_token_ids": stop, "skip_special_tokens": false, "no_stop_trim": true,
            },
        }),
        // Its other samplers are on unless the list leaves them out.
        ServerDialect::LlamaCpp => json!({
            "prompt": prompt,
            "stream": false,
            "n_predict": ask.tokens_max,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": ask.seed,
            "n_probs": 1,
            "return_tokens": true,
            "cache_prompt": true,
        }),
        // The three last are vLLM's; a server without them gives texts alone, which is refused.
        ServerDialect::Openai => json!({
            "prompt": prompt,
            "stream": false,
            "max_tokens": ask.tokens_max,
            "temperature": temperature,
            "top_p": 1.0,
            "seed": ask.seed,
            "logprobs": 1,
            "return_token_ids": true,
            "return_tokens_as_token_ids": true,
            "stop_token_ids": stop,
        }),
    };
    let names_it = matches!(dialect, ServerDialect::Vllm | ServerDialect::Openai);
    if let Some(model) = model.filter(|_| names_it) {
        body["model"] = model.into();
    }
    body
}

/// The message in an answer, if it is what was asked for.
///
/// # Errors
/// What is wrong with the answer.
pub(crate) fn read(
    dialect: ServerDialect,
    ask: &Ask<'_>,
    answer: &Value,
    vocab_size: usize,
) -> Result<Answer, String> {
    let said = match dialect {
        ServerDialect::Vllm => vllm(answer),
        ServerDialect::Sglang => sglang(answer),
        ServerDialect::LlamaCpp => llama_cpp(answer),
        ServerDialect::Openai => openai(answer),
    };
    checked(ask, said, vocab_size)
}

fn vllm(answer: &Value) -> Said {
    let choice = &answer["choices"][0];
    let scored = choice["logprobs"]["content"].as_array();
    let all = |pick: &dyn Fn(&Value) -> Option<f64>| scored?.iter().map(pick).collect();
    Said {
        token_ids: ids(&choice["token_ids"]),
        log_probs: all(&|entry| entry["logprob"].as_f64()),
        scored_ids: scored
            .and_then(|all| all.iter().map(|entry| numbered(&entry["token"])).collect()),
        prompt_ids: ids(&answer["prompt_token_ids"]),
        finish: word(&choice["finish_reason"]),
        ..Said::default()
    }
}

fn sglang(answer: &Value) -> Said {
    let meta = &answer["meta_info"];
    // [log-prob, id, text or null] each.
    let scored = meta["output_token_logprobs"].as_array();
    let ids_of = || scored?.iter().map(|entry| id(&entry[1])).collect();
    let scored_ids: Option<Vec<u32>> = ids_of();
    Said {
        token_ids: ids(&answer["output_ids"]).or_else(|| scored_ids.clone()),
        log_probs: scored.and_then(|all| all.iter().map(|entry| entry[0].as_f64()).collect()),
        scored_ids,
        prompt_tokens: meta["prompt_tokens"].as_u64(),
        finish: word(&meta["finish_reason"]["type"]),
        ..Said::default()
    }
}

/// It leaves out the log-prob of an id that ends within a character, and the list if nothing is left.
fn llama_cpp(answer: &Value) -> Said {
    let entries = answer["completion_probabilities"].as_array();
    let entry = |entry: &Value| Some((id(&entry["id"])?, entry["logprob"].as_f64()?));
    let scored: Option<Vec<(u32, f64)>> =
        entries.map_or(Some(Vec::new()), |all| all.iter().map(entry).collect());
    let token_ids = ids(&answer["tokens"]);
    let given = token_ids.as_ref().map(|ids| ids.len() as u64);
    let laid = (token_ids.as_deref().zip(scored.as_deref())).and_then(|(ids, all)| laid(ids, all));
    let (log_probs, unsaid, scored_ids) = match laid {
        Some((log_probs, unsaid)) => (Some(log_probs), unsaid, None),
        None => {
            let (ids, log_probs) = scored.into_iter().flatten().unzip();
            (Some(log_probs), BTreeSet::new(), Some(ids))
        }
    };
    Said {
        token_ids,
        log_probs,
        unsaid,
        scored_ids,
        prompt_ids: ids(&answer["prompt"]),
        prompt_tokens: answer["tokens_evaluated"].as_u64(),
        finish: match answer["stop_type"].as_str() {
            Some("eos") => "stop".to_owned(),
            Some("limit") => "length".to_owned(),
            _ => word(&answer["stop_type"]),
        },
        end_is_said: given.is_some() && answer["tokens_predicted"].as_u64() == given,
    }
}

/// Log-probs in the places of their ids, and the places that have none. A log-prob has a place if
/// every way to lay all of them along the ids, in their order, puts it there; none if there is no way.
fn laid(ids: &[u32], scored: &[(u32, f64)]) -> Option<(Vec<f64>, BTreeSet<usize>)> {
    let mut first = Vec::with_capacity(scored.len());
    let mut places = 0..ids.len();
    for (id, _) in scored {
        first.push(places.find(|at| ids[*at] == *id)?);
    }
    let mut places = (0..ids.len()).rev();
    let mut unsaid: BTreeSet<usize> = (0..ids.len()).collect();
    let mut log_probs = vec![0.0; ids.len()];
    for ((id, log_prob), first) in scored.iter().zip(first).rev() {
        let last = places.find(|at| ids[*at] == *id)?;
        if first == last {
            log_probs[last] = *log_prob;
            unsaid.remove(&last);
        }
    }
    Some((log_probs, unsaid))
}

/// Has llama.cpp tell the log-probs of all ids behind a prompt: `end`, which ends a character and the
/// message, is forced, since the log-probs are those before anything is forced.
pub(crate) fn distribution_body(prompt: &[u32], end: u32, vocab_size: usize) -> Value {
    const CERTAIN: f64 = 1e6;
    json!({
        "prompt": prompt,
        "stream": false,
        "n_predict": 1,
        "temperature": 0.0,
        "samplers": ["temperature"],
        "logit_bias": [[end, CERTAIN]],
        "n_probs": vocab_size,
        "return_tokens": true,
        "cache_prompt": true,
    })
}

/// What the answer to [`distribution_body`] says of an id behind a prompt of so many ids.
///
/// # Errors
/// It says nothing of it, or has read another prompt.
pub(crate) fn told(answer: &Value, prompt_tokens: usize, of: u32) -> Result<f32, String> {
    let read = &answer["tokens_evaluated"];
    if *read != prompt_tokens {
        return Err(format!(
            "it has read {read} ids of a prompt of {prompt_tokens}"
        ));
    }
    let all = answer["completion_probabilities"][0]["top_logprobs"].as_array();
    let found = all.and_then(|all| all.iter().find(|entry| id(&entry["id"]) == Some(of)));
    let log_prob = found.and_then(|entry| entry["logprob"].as_f64());
    match log_prob.filter(|log_prob| is_log_prob(*log_prob)) {
        Some(log_prob) => Ok(log_prob as f32),
        None => Err(format!(
            "it gives no log-prob of the id {of}, which ends within a character, with the log-probs of all ids \
             behind the {prompt_tokens} before it either"
        )),
    }
}

fn openai(answer: &Value) -> Said {
    let choice = &answer["choices"][0];
    let scored = &choice["logprobs"];
    let tokens = scored["tokens"].as_array();
    let scored_ids: Option<Vec<u32>> =
        tokens.and_then(|tokens| tokens.iter().map(numbered).collect());
    Said {
        token_ids: ids(&choice["token_ids"]).or_else(|| scored_ids.clone()),
        log_probs: scored["token_logprobs"]
            .as_array()
            .and_then(|all| all.iter().map(Value::as_f64).collect()),
        scored_ids,
        prompt_ids: ids(&choice["prompt_token_ids"]),
        prompt_tokens: answer["usage"]["prompt_tokens"].as_u64(),
        finish: word(&choice["finish_reason"]),
        ..Said::default()
    }
}

fn checked(ask: &Ask<'_>, said: Said, vocab_size: usize) -> Result<Answer, String> {
    let own = ask.prompt.len();
    if let Some(read) = said.prompt_ids.filter(|read| read != ask.prompt) {
        let same = (read.iter().zip(ask.prompt)).take_while(|(a, b)| a == b);
        return Err(format!(
            "it answers a prompt of {} ids where {own} were sent, and only the first {} of them are the same",
            read.len(),
            same.count()
        ));
    }
    if let Some(read) = said.prompt_tokens.filter(|read| *read != own as u64) {
        return Err(format!(
            "it has read {read} ids of a prompt of {own}; an id that is put in front of every prompt must be \
             switched off there"
        ));
    }
    let Some(mut token_ids) = said.token_ids else {
        return Err(
            "it gives texts and no token ids; encoding them again would give other ids than were sampled"
                .to_owned(),
        );
    };
    let Some(log_probs) = said.log_probs else {
        return Err("it gives no log-probs, or some that are no numbers".to_owned());
    };
    if token_ids.is_empty() {
        return Err("it has generated no ids".to_owned());
    }
    if log_probs.len() != token_ids.len() {
        return Err(format!(
            "{} log-probs for {} ids",
            log_probs.len(),
            token_ids.len()
        ));
    }
    if said.scored_ids.is_some_and(|scored| scored != token_ids) {
        return Err("its log-probs belong to other ids than it gives".to_owned());
    }
    if let Some(id) = token_ids.iter().find(|id| **id as usize >= vocab_size) {
        return Err(format!(
            "the id {id}, where the policy has {vocab_size}; it serves a model of another vocabulary"
        ));
    }
    if let Some(wrong) = log_probs.iter().find(|log_prob| !is_log_prob(**log_prob)) {
        return Err(format!("a log-prob of {wrong}"));
    }
    // A server that does not know every stop id goes on after it. What it sampled before is the
    // same message.
    let end = token_ids.iter().position(|id| ask.stop_ids.contains(id));
    if let Some(end) = end {
        token_ids.truncate(end + 1);
    }
    let length = token_ids.len();
    if length > ask.tokens_max {
        return Err(format!(
            "{length} ids, where {} were allowed",
            ask.tokens_max
        ));
    }
    let goes_on = end.is_none() && said.finish == "stop" && said.end_is_said;
    match (end, said.finish.as_str()) {
        (Some(_), _) => {}
        (None, "stop") if goes_on => {}
        (None, "length") if length == ask.tokens_max => {}
        (None, "length") => {
            return Err(format!(
                "it ends after {length} of {} ids behind a prompt of {own}: its context is shorter than \
                 actor_rollout_ref.rollout.max_model_len; start it with a longer one, or lower the key in a run \
                 of its own",
                ask.tokens_max
            ));
        }
        (None, finish) => {
            return Err(format!(
                "it ends a message ({finish}) without giving an id that ends one ({:?})",
                ask.stop_ids
            ));
        }
    }
    let mut log_probs: Vec<f32> = log_probs.iter().map(|p| *p as f32).collect();
    log_probs.truncate(length);
    Ok(Answer {
        token_ids,
        log_probs,
        unsaid: said.unsaid.into_iter().filter(|at| *at < length).collect(),
        ended: end.is_some(),
        goes_on: goes_on && length < ask.tokens_max,
    })
}

fn is_log_prob(number: f64) -> bool {
    // Rounding may put the log-prob of what is certain a little above 0.
    const ROUNDING: f64 = 1e-3;
    number <= ROUNDING && number.is_finite()
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(id).collect()
}

/// `token_id:123`, as vLLM writes an id where OpenAI has a text.
fn numbered(value: &Value) -> Option<u32> {
    value.as_str()?.strip_prefix("token_id:")?.parse().ok()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.chars().take(40).collect(),
        Value::Null => "no reason given".to_owned(),
        _ => "a reason that is no word".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
