//! A session: one task played on a server.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::greeting;
use super::http::{Ask, Repeat};
use super::inner::Inner;
use super::pool::Place;
use super::reply::{at, unlike};
use crate::error::EnvError;
use crate::parser::{Parsed, offered::lenient};
use crate::spec::{Actions, DoneRule, End, Ended, FirstObservation, Fixed, RewardRule};

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Text for the policy.
    pub observation: String,
    /// Scaled reward of this step.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// The reward meets the environment's rule for success.
    pub success: bool,
    /// The action that was sent.
    pub action: Option<String>,
    /// The parser's result for the model's text.
    pub parsed: Parsed,
    /// The client answered locally; nothing was sent.
    pub local: bool,
    /// What a harness says of its agent, which has ended.
    pub ended: Option<Ended>,
}

/// An open session. Dropping it closes it in the background, or keeps it for a later episode if the
/// environment's specification says so.
pub struct Session {
    inner: Arc<Inner>,
    /// `None` once closed.
    place: Option<Place>,
    id: Value,
    /// The server's `gone` counter when the session was opened.
    born: u64,
    first: String,
    latest: String,
    /// The actions in the latest reply, if replies list them.
    listed: Option<Vec<String>>,
    /// The first reward that was not zero.
    reward: f64,
    finished: bool,
    /// Every call had a valid reply, so a later episode can reuse the session.
    sound: bool,
}

impl Session {
    pub(super) fn new(inner: Arc<Inner>, place: Place, id: Value) -> Self {
        Self {
            inner,
            born: place.server().gone(),
            place: Some(place),
            id,
            first: String::new(),
            latest: String::new(),
            listed: None,
            reward: 0.0,
            finished: false,
            sound: false,
        }
    }

    pub(super) async fn reset(&mut self, item_id: i64) -> Result<(), EnvError> {
        let spec = self.inner.spec;
        let routes = spec.routes;
        greeting::check(spec, self.place().server()).await?;
        let mut body = Map::new();
        body.insert(spec.id_key.to_owned(), self.id.clone());
        for (key, value) in spec.reset_fixed {
            let value = match value {
                Fixed::Int(number) => json!(number),
                Fixed::Text(text) => json!(text),
            };
            body.insert((*key).to_owned(), value);
        }
        body.insert(spec.reset_key.to_owned(), json!(item_id));
        let body = Value::Object(body);
        let reply = self
            .call(
                Ask::post(routes.reset, Some(&body)),
                routes.reset,
                Repeat::Always,
            )
            .await?;
        let text = match (spec.first_observation, &reply) {
            (FirstObservation::Observe, _) => {
                let query = Some((spec.id_key, &self.id));
                let ask = Ask::get(routes.observation, query);
                let reply = self.call(ask, routes.observation, Repeat::Always).await?;
                match &reply {
                    Value::String(text) => text.clone(),
                    reply => self.text(routes.observation, reply, spec.observation_key)?,
                }
            }
            (_, Value::String(text)) => text.clone(),
            (FirstObservation::Bare, reply) => match reply.get(0) {
                Some(Value::String(text)) => text.clone(),
                _ => {
                    let found = unlike(reply, "0", "text");
                    return Err(self.protocol(routes.reset, &found, reply));
                }
            },
            (FirstObservation::Keys(keys), reply) => {
                let texts: Result<Vec<String>, EnvError> = keys
                    .iter()
                    .map(|key| self.text(routes.reset, reply, key))
                    .collect();
                texts?.join("\n")
            }
        };
        greeting::check_first(spec, self.place().server(), &text)?;
        self.finished = self.is_cut(&reply) || at(&reply, spec.done_key) == true;
        self.read_actions(&reply);
        self.read_text(&text);
        self.first = text;
        self.sound = true;
        if let Some(label) = spec.first_lists_actions
            && let Some(actions) = self.available_actions().await?
        {
            self.first = format!("{}\n{label}{}", self.first, actions.join(", "));
        }
        Ok(())
    }

    /// The first observation of the task.
    pub fn observation(&self) -> &str {
        &self.first
    }

    /// Whether the episode is over: no step is taken any more.
    pub fn is_over(&self) -> bool {
        self.finished
    }

    /// Base URL of the session's server.
    pub fn url(&self) -> &str {
        self.place().server().url()
    }

    /// The currently possible actions, if the environment lists them. Where an action takes free
    /// text, the list contains patterns.
    pub async fn available_actions(&self) -> Result<Option<Vec<String>>, EnvError> {
        match self.inner.spec.actions {
            Actions::None => Ok(None),
            Actions::InReply(_) => Ok(self.listed.clone()),
            actions @ Actions::InText(_) => Ok(actions.in_text(&self.latest)),
            Actions::Endpoint { path, with_id } => {
                let query = with_id.then_some((self.inner.spec.id_key, &self.id));
                let ask = Ask::get(path, query);
                let reply = self.call(ask, path, Repeat::Always).await?;
                match actions_of(&reply) {
                    Some(actions) => Ok(Some(actions)),
                    None => Err(self.protocol(path, "no list of actions", &reply)),
                }
            }
        }
    }

    /// Plays one model text. A local reply has reward 0 and leaves the episode open. After the end,
    /// or after a step whose outcome is unknown, every step is an error.
    pub async fn step(&mut self, model_text: &str) -> Result<StepOutput, EnvError> {
        let spec = self.inner.spec;
        if self.place.is_none() {
            return Err(EnvError::Client("the session was let go".to_owned()));
        }
        if self.finished {
            let error = EnvError::Finished {
                call: self.place().server().name(spec.routes.step),
            };
            self.inner.counters.fault(&error);
            return Err(error);
        }
        let mut parsed = spec.parse(model_text);
        if self.inner.lenient_actions
            && let Some(offered) = self.available_actions().await?
        {
            parsed = lenient(parsed, model_text, &offered);
        }
        self.inner.counters.note(|counters| {
            counters.normalised += u64::from(parsed.normalised);
            counters.local_replies += u64::from(parsed.action.is_none());
        });
        let Some(action) = parsed.action.clone() else {
            return Ok(StepOutput {
                observation: parsed.local_reply.clone().unwrap_or_default(),
                reward: 0.0,
                done: false,
                success: false,
                action: None,
                parsed,
                local: true,
                ended: None,
            });
        };
        let step = spec.routes.step;
        let body = json!({ spec.id_key: self.id, "action": action });
        // Until a reply is understood, the session's state is unknown. A caller that ignores an
        // error or was cancelled here must not continue in it.
        (self.finished, self.sound) = (true, false);
        let ask = Ask::post(step, Some(&body));
        let reply = self.call(ask, step, Repeat::IfNotRun).await?;
        let observation = self.text(step, &reply, spec.observation_key)?;
        let cut = self.is_cut(&reply);
        let done = match at(&reply, spec.done_key).as_bool() {
            Some(done) => done || cut,
            None if cut => true,
            None => {
                let found = unlike(&reply, spec.done_key, "true or false");
                return Err(self.protocol(step, &found, &reply));
            }
        };
        let ended = match spec.harness && done {
            true => Some(self.ended(&reply)?),
            false => None,
        };
        let reward = match spec.reward_rule {
            _ if spec.harness => ended.as_ref().and_then(|ended| ended.reward).unwrap_or(0.0),
            RewardRule::EachStep => self.number(&reply)?,
            RewardRule::WhenDone if done => self.number(&reply)?,
            RewardRule::WhenDone => 0.0,
            RewardRule::FirstNonZero => {
                let number = self.number(&reply)?;
                if self.reward == 0.0 {
                    self.reward = number;
                }
                self.reward
            }
        };
        let success = spec.success.holds(reward);
        if spec.done_rule == DoneRule::WhenSolved && done != success {
            let what = match done {
                true => "an end of the episode without a solution",
                false => "a solution that does not end the episode",
            };
            return Err(self.protocol(step, what, &reply));
        }
        self.read_actions(&reply);
        self.read_text(&observation);
        (self.finished, self.sound) = (done, true);
        Ok(StepOutput {
            observation,
            reward,
            done,
            success,
            action: Some(action),
            parsed,
            local: false,
            ended,
        })
    }

    /// Closes the session and waits for the reply, or keeps it for a later episode.
    pub async fn close(mut self) -> Result<(), EnvError> {
        if self.place.is_none() || (self.inner.spec.reuse && self.sound) {
            return Ok(());
        }
        if self.is_lost() {
            self.forget();
            return Ok(());
        }
        // The place is kept until the reply arrives: if the caller is cancelled while it waits,
        // `drop` closes the session. Closing twice is harmless.
        let closed = self.inner.close(self.place(), &self.id).await;
        self.place = None;
        closed
    }

    /// Whether the server was down since: then the session is lost and its number may be reused.
    pub(super) fn is_lost(&self) -> bool {
        self.place().server().gone() != self.born
    }

    /// Releases a session that ended with its server.
    fn forget(&mut self) {
        if let Some(place) = self.place.take() {
            place.closing(&self.id);
        }
        self.inner.counters.note(|counters| counters.closed += 1);
    }

    fn place(&self) -> &Place {
        self.place
            .as_ref()
            .expect("a session has its place until it is closed")
    }

    async fn call(
        &self,
        ask: Ask<'_>,
        endpoint: &'static str,
        repeat: Repeat,
    ) -> Result<Value, EnvError> {
        let Some(place) = &self.place else {
            return Err(EnvError::Client("the session was let go".to_owned()));
        };
        if !place.owns(&self.id) {
            let error = place.shared(endpoint, &self.id);
            self.inner.counters.fault(&error);
            return Err(error);
        }
        if self.is_lost() {
            let error = EnvError::Dropped {
                call: place.server().name(endpoint),
                found: "nobody listened there since the session was opened".to_owned(),
            };
            self.inner.counters.fault(&error);
            return Err(error);
        }
        let reply = place.server().call(ask, repeat).await;
        if let Err(error @ (EnvError::Unreachable { .. } | EnvError::TimedOut { .. })) = &reply {
            place.failed(error);
        }
        let reply = self.inner.without_error(place, endpoint, reply?)?;
        match reply.get(self.inner.spec.id_key) {
            Some(id) if *id != self.id => {
                let what = format!("the reply of session {id} and not {}", self.id);
                Err(self.protocol(endpoint, &what, &reply))
            }
            _ => Ok(reply),
        }
    }

    fn text(&self, endpoint: &'static str, reply: &Value, key: &str) -> Result<String, EnvError> {
        match at(reply, key) {
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.protocol(endpoint, &unlike(reply, key, "text"), reply)),
        }
    }

    /// The scaled reward in a reply to a step.
    fn number(&self, reply: &Value) -> Result<f64, EnvError> {
        let spec = self.inner.spec;
        let failed = |found: &str| Err(self.protocol(spec.routes.step, found, reply));
        let Some(number) = at(reply, spec.reward_key).as_f64() else {
            return failed(&unlike(reply, spec.reward_key, "number"));
        };
        let number = number * spec.reward_scale;
        // Training uses 32-bit floats, in which a larger number would be infinite.
        match (number as f32).is_finite() {
            true => Ok(number),
            false => failed("a reward beyond all bounds"),
        }
    }

    /// What a harness says of its agent. Who finished has a reward.
    fn ended(&self, reply: &Value) -> Result<Ended, EnvError> {
        let (spec, step) = (self.inner.spec, self.inner.spec.routes.step);
        let mut ended: Ended = serde_json::from_value(reply.clone())
            .map_err(|error| self.protocol(step, &error.to_string(), reply))?;
        let judged = !at(reply, spec.reward_key).is_null();
        ended.reward = match judged || ended.how == End::Finished {
            true => Some(self.number(reply)?),
            false => spec.failed_reward,
        };
        Ok(ended)
    }

    /// Whether a reply says that a limit of the server ended the episode.
    fn is_cut(&self, reply: &Value) -> bool {
        let key = self.inner.spec.truncated_key;
        key.is_some_and(|key| at(reply, key) == true)
    }

    fn protocol(&self, endpoint: &'static str, what: &str, reply: &Value) -> EnvError {
        self.place().server().protocol(endpoint, what, reply)
    }

    /// Keeps the text if actions are parsed from it; otherwise not, since it may have megabytes.
    fn read_text(&mut self, text: &str) {
        if matches!(self.inner.spec.actions, Actions::InText(_)) {
            text.clone_into(&mut self.latest);
        }
    }

    fn read_actions(&mut self, reply: &Value) {
        if let Actions::InReply(key) = self.inner.spec.actions {
            self.listed = reply.get(key).and_then(actions_of);
        }
    }
}

/// Accepts a list, ScienceWorld's hints and WebShop's page elements.
fn actions_of(reply: &Value) -> Option<Vec<String>> {
    let texts = |list: &Value| {
        let list = list.as_array()?;
        list.iter()
            .map(|text| text.as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
    };
    if let Some(list) = texts(reply).or_else(|| texts(&reply["possible_actions"])) {
        return Some(list);
    }
    let clickables = texts(&reply["clickables"])?;
    let search = reply["has_search_bar"].as_bool()?;
    let search = search.then(|| "search[KEYWORDS]".to_owned());
    let clicks = clickables.into_iter().map(|what| format!("click[{what}]"));
    Some(search.into_iter().chain(clicks).collect())
}

impl Session {
    /// Releases a session early when no step follows: it is closed in the background (or kept), and
    /// another one may be opened in its place.
    pub fn let_go(&mut self) {
        if self.place.is_none() {
            return;
        }
        if self.is_lost() {
            self.forget();
            return;
        }
        let Some(place) = self.place.take() else {
            return;
        };
        let id = self.id.take();
        if self.inner.spec.reuse && self.sound {
            place.keep(id, self.born);
        } else {
            self.inner.close_in_background(place, id);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.let_go();
    }
}
