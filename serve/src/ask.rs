//! What a request asks for, checked before it takes a place: whatever is wrong with it, or could never
//! be done, is said at once.

use crate::calls::Calls;
use crate::conversation::{AgentPrompt, Conversation, conversation};
use crate::fields::{Fields, ids};
use crate::refusal::Refusal;
use agentgym_model::{Policy, Sampling};
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// Choices of a prompt.
const CHOICES_MAX: i64 = 128;
/// Stop texts, and bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// The smallest temperature above 0: logits divided by it are still numbers.
const TEMPERATURE_MIN: f64 = 1e-3;
/// The length of a completion of which nothing is said, as OpenAI has it.
const TOKENS_DEFAULT: usize = 16;

/// Fields that both kinds of requests have.
const BOTH: [&str; 15] = [
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "logprobs",
    "stream",
    "stream_options",
    "return_token_ids",
    "return_tokens_as_token_ids",
];

/// Fields of a chat beside these.
const OF_CHAT: [&str; 6] = [
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
];

/// Which of OpenAI's two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Completion,
    Chat,
}

impl Form {
    /// The fields of a request of this form.
    fn fields(self, all: Map<String, Value>) -> Result<Fields, Refusal> {
        let own: &[&str] = match self {
            Self::Completion => &["prompt", "echo"],
            Self::Chat => &OF_CHAT,
        };
        Fields::of(all, &[&BOTH, own].concat())
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) form: Form,
    /// When it came, in seconds since 1970.
    pub(crate) created: u64,
    /// Ids of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Choices for each prompt.
    pub(crate) n: usize,
    /// 0: nothing is generated.
    pub(crate) tokens_max: usize,
    pub(crate) sampling: Sampling,
    /// Of this and the choice's number all random numbers are made.
    pub(crate) seed: [u8; 32],
    /// Texts that end a message and are not part of it.
    pub(crate) stops: Vec<String>,
    /// Ids that end it.
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) log_probs: bool,
    /// With the likeliest id beside each.
    pub(crate) likeliest: bool,
    /// The prompt is part of the answer.
    pub(crate) echo: bool,
    pub(crate) stream: bool,
    /// A stream ends with the counts.
    pub(crate) counts: bool,
    /// Tokens are written as `token_id:N`.
    pub(crate) as_ids: bool,
    /// The ids of the prompt are part of the answer.
    pub(crate) prompt_ids: bool,
    /// Calls are read in the message.
    pub(crate) reads_calls: bool,
    /// The message ends behind its first call.
    pub(crate) one_call: bool,
}

impl Ask {
    /// Reads the fields that were posted to a completion's or a chat's route.
    pub(crate) fn read(
        form: Form,
        fields: Map<String, Value>,
        (policy, name): (&Policy, &str),
    ) -> Result<Self, Refusal> {
        let fields = form.fields(fields)?;
        let asked = fields.get("model").map(|model| model.as_str());
        if asked.is_some_and(|model| model != Some(name)) {
            let message = format!("the policy here is {name:?}; GET /v1/models names it too");
            return Err(Refusal::no_model(message));
        }
        let mut ask = Self::of(form, &fields)?;
        let wanted = tokens_max(&fields)?;
        if !fields.flag("ignore_eos")? {
            ask.stop_ids.extend_from_slice(policy.eos_ids());
        }
        ask.prompts = match form {
            Form::Completion => prompts(&fields, policy)?,
            Form::Chat => {
                let (prompt, has_tools) = conversation(&fields, policy)?;
                ask.may_call(has_tools, &fields);
                vec![prompt]
            }
        };
        ask.measure(wanted, policy)?;
        Ok(ask)
    }

    /// What its fields say, but for the prompt.
    fn of(form: Form, fields: &Fields) -> Result<Self, Refusal> {
        let (log_probs, likeliest) = log_probs(form, fields)?;
        let options = match fields.get("stream_options") {
            None => None,
            Some(options) => Some((options.as_object()).ok_or_else(|| {
                Refusal::bad("stream_options", "stream_options must be an object")
            })?),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            form,
            created: now.map_or(0, |now| now.as_secs()),
            prompts: Vec::new(),
            n: fields.whole("n", 1..=CHOICES_MAX)?.unwrap_or(1) as usize,
            tokens_max: 0,
            sampling: sampling(fields)?,
            seed: seed(fields)?,
            stops: stops(fields)?,
            stop_ids: fields.ids("stop_token_ids")?,
            log_probs,
            likeliest,
            echo: fields.flag("echo")?,
            stream: fields.flag("stream")?,
            counts: options.is_some_and(|all| all.get("include_usage") == Some(&Value::Bool(true))),
            as_ids: fields.flag("return_tokens_as_token_ids")?,
            prompt_ids: fields.flag("return_token_ids")?,
            reads_calls: false,
            one_call: false,
        })
    }

    /// The fields of a request whose ids and sampling are not this server's: what it asks for, what is to
    /// be answered, and the most tokens that it wants.
    pub(crate) fn of_agent(
        form: Form,
        fields: Map<String, Value>,
    ) -> Result<(Self, AgentPrompt, Option<usize>), Refusal> {
        let fields = form.fields(fields)?;
        let mut ask = Self::of(form, &fields)?;
        if ask.n > 1 {
            let message = "one answer at a time: ask again for another";
            return Err(Refusal::bad("n", message));
        }
        let tokens_max = tokens_max(&fields)?;
        if tokens_max == Some(0) {
            return Err(Refusal::bad(
                "max_tokens",
                "an answer has at least one token",
            ));
        }
        match form {
            Form::Completion if ask.echo => {
                let message = "the prompt is not repeated here; leave echo out";
                Err(Refusal::bad("echo", message))
            }
            Form::Completion => {
                let tokens_max = tokens_max.unwrap_or(TOKENS_DEFAULT);
                Ok((ask, AgentPrompt::of_completion(&fields)?, Some(tokens_max)))
            }
            Form::Chat => {
                let conversation = Conversation::read(&fields)?;
                ask.may_call(conversation.tools.is_some(), &fields);
                Ok((ask, AgentPrompt::Chat(conversation), tokens_max))
            }
        }
    }

    fn may_call(&mut self, has_tools: bool, fields: &Fields) {
        let one = fields.get("parallel_tool_calls") == Some(&Value::Bool(false));
        (self.reads_calls, self.one_call) = (has_tools, has_tools && one);
    }

    /// Checks lengths and ids, and decides how long a message may become.
    fn measure(&mut self, wanted: Option<usize>, policy: &Policy) -> Result<(), Refusal> {
        let context = policy.config().max_position_embeddings;
        let vocabulary = policy.config().vocab_size;
        let field = match self.form {
            Form::Completion => "prompt",
            Form::Chat => "messages",
        };
        if wanted == Some(0) && !self.echo {
            let message = "max_tokens of 0 needs echo, which scores the prompt";
            return Err(Refusal::bad("max_tokens", message));
        }
        for prompt in &self.prompts {
            if prompt.is_empty() {
                return Err(Refusal::bad(field, "a prompt has no ids"));
            }
            if let Some(id) = prompt.iter().find(|id| **id as usize >= vocabulary) {
                let message = format!("the id {id} is outside the vocabulary of {vocabulary}");
                return Err(Refusal::bad(field, message));
            }
            // Where no length is asked for, one more has to fit.
            let length = prompt.len();
            if length + wanted.unwrap_or(1) > context {
                return Err(too_long(field, context, length, wanted.unwrap_or(1)));
            }
        }
        // The engine ends a message at the end of the context.
        self.tokens_max = wanted.unwrap_or(match self.form {
            Form::Completion => TOKENS_DEFAULT,
            Form::Chat => context,
        });
        Ok(())
    }

    /// Whether prompts are scored.
    pub(crate) fn scores(&self) -> bool {
        self.echo && self.log_probs
    }

    /// Sequences that the engine has to do with.
    pub(crate) fn places(&self) -> usize {
        let generated = match self.tokens_max {
            0 => 0,
            _ => self.prompts.len() * self.n,
        };
        let scored = if self.scores() { self.prompts.len() } else { 0 };
        (generated + scored).max(1)
    }

    /// What finds the calls of a choice, if it may call tools.
    pub(crate) fn calls(&self, choice: usize) -> Option<Calls> {
        let key = || {
            let mut hasher = blake3::Hasher::new_keyed(&self.stream_key(choice));
            for id in &self.prompts[choice / self.n] {
                hasher.update(&id.to_le_bytes());
            }
            *hasher.finalize().as_bytes()
        };
        self.reads_calls.then(|| Calls::new(key(), self.one_call))
    }

    /// The random key of a choice.
    pub(crate) fn stream_key(&self, choice: usize) -> [u8; 32] {
        *blake3::keyed_hash(&self.seed, &(choice as u64).to_le_bytes()).as_bytes()
    }
}

/// The most tokens that are wanted.
fn tokens_max(fields: &Fields) -> Result<Option<usize>, Refusal> {
    let given = |name: &str| fields.whole(name, 0..=i64::from(u32::MAX));
    let most = given("max_completion_tokens")?.or(given("max_tokens")?);
    Ok(most.map(|most| most as usize))
}

fn too_long(field: &str, context: usize, length: usize, wanted: usize) -> Refusal {
    let message = format!(
        "the policy reads {context} ids; the prompt has {length}, and {wanted} more are to fit behind it"
    );
    Refusal::too_long(field, message)
}

fn sampling(fields: &Fields) -> Result<Sampling, Refusal> {
    let top_p = fields.number("top_p", 1.0, 0.0..=1.0)?;
    if top_p == 0.0 {
        return Err(Refusal::bad("top_p", "top_p must be above 0"));
    }
    let temperature = fields.number("temperature", 1.0, 0.0..=100.0)?;
    if temperature > 0.0 && temperature < TEMPERATURE_MIN {
        let message = format!("temperature must be 0 or at least {TEMPERATURE_MIN}");
        return Err(Refusal::bad("temperature", message));
    }
    // Both -1 and 0 switch it off.
    let top_k = fields.whole("top_k", -1..=i64::from(u32::MAX))?;
    Ok(Sampling {
        temperature,
        top_k: top_k.unwrap_or(0).max(0) as usize,
        top_p,
        greedy: false,
    })
}

/// The key of a seed, else of what the system calls random.
fn seed(fields: &Fields) -> Result<[u8; 32], Refusal> {
    let mut key = [0; 32];
    match fields.whole("seed", i64::MIN..=i64::MAX)? {
        Some(seed) => Ok(*blake3::hash(&seed.to_le_bytes()).as_bytes()),
        None => match getrandom::fill(&mut key) {
            Ok(()) => Ok(key),
            Err(e) => Err(Refusal::failed(format!("no random numbers: {e}"))),
        },
    }
}

fn stops(fields: &Fields) -> Result<Vec<String>, Refusal> {
    let stops = fields.texts("stop")?;
    if stops.len() > STOPS_MAX || stops.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        let message = format!("up to {STOPS_MAX} texts of up to {STOP_BYTES_MAX} bytes");
        return Err(Refusal::bad("stop", message));
    }
    Ok(stops)
}

/// Whether log-probs are asked for, and the likeliest ids beside them.
fn log_probs(form: Form, fields: &Fields) -> Result<(bool, bool), Refusal> {
    match form {
        Form::Completion => {
            let most = match fields.get("logprobs") {
                Some(Value::Bool(wanted)) => wanted.then_some(0),
                _ => fields.whole("logprobs", 0..=1)?,
            };
            Ok((most.is_some(), most == Some(1)))
        }
        Form::Chat => {
            let wanted = fields.flag("logprobs")?;
            fields.whole("top_logprobs", 0..=0)?;
            Ok((wanted, false))
        }
    }
}

/// A text, a list of texts, ids, or a list of lists of ids.
fn prompts(fields: &Fields, policy: &Policy) -> Result<Vec<Vec<u32>>, Refusal> {
    let wrong = || {
        let message = "prompt must be a text, a list of texts, a list of ids or a list of these";
        Refusal::bad("prompt", message)
    };
    let encoded = |text: &str| {
        let ids = policy.tokenizer().encode(text);
        ids.map_err(|e| Refusal::bad("prompt", e.to_string()))
    };
    match fields.get("prompt") {
        Some(Value::String(text)) => Ok(vec![encoded(text)?]),
        Some(Value::Array(all)) if all.first().is_some_and(Value::is_number) => {
            Ok(vec![ids(all).ok_or_else(wrong)?])
        }
        Some(Value::Array(all)) if !all.is_empty() => {
            let one = |value: &Value| match value {
                Value::String(text) => encoded(text),
                Value::Array(all) => ids(all).ok_or_else(wrong),
                _ => Err(wrong()),
            };
            all.iter().map(one).collect()
        }
        _ => Err(wrong()),
    }
}
