//! Texts of an episode as ids, long ones without keeping other episodes waiting.

use crate::Result;
use crate::blocking::blocking;
use crate::demonstrations::reply_parts;
use agentgym_model::{Message, PolicyText, Role};
use tokio::sync::Semaphore;

/// An observation up to this many bytes is always kept whole.
const KEPT_WHOLE: usize = 1 << 20;

/// Encoding takes hundreds of bytes of memory per byte of text, so a process encodes one text
/// longer than [`KEPT_WHOLE`] at a time.
static LONG_TEXT: Semaphore = Semaphore::const_new(1);

/// Ids of the messages before the first reply, the human's and the policy's in turn, each appended
/// like a turn of the episode. `None` if their length alone shows more than `ids_max` of them.
pub(super) fn prompt_ids(
    policy: &PolicyText,
    messages: &[String],
    reply_prefix: &str,
    ids_max: usize,
) -> agentgym_model::Result<Option<Vec<u32>>> {
    let (chat, tokenizer) = (policy.chat(), policy.tokenizer());
    let mut ids = Vec::new();
    for (index, text) in messages.iter().enumerate() {
        let left = ids_max.saturating_sub(ids.len());
        let more = match index {
            0 => chat.prompt_ids_within(tokenizer, &[Message::new(Role::User, text)], left)?,
            _ if index % 2 == 1 => {
                let (head, rest) = reply_parts(reply_prefix, text);
                let mut reply = tokenizer.encode_ordinary(head)?;
                reply.extend(tokenizer.encode_ordinary(rest)?);
                reply.push(chat.end_of_turn_id(tokenizer)?);
                Some(reply)
            }
            _ => {
                let told = Message::new(Role::User, text);
                chat.next_ids_within(tokenizer, true, told, left)?
            }
        };
        let Some(more) = more else {
            return Ok(None);
        };
        ids.extend(more);
    }
    Ok(Some(ids))
}

/// An observation as recorded: whole, unless it is longer than [`KEPT_WHOLE`] and has more than
/// `ids_max` ids, too many for any context. Then the record holds a beginning that is itself too long.
pub(super) async fn kept(text: &PolicyText, observation: String, ids_max: usize) -> Result<String> {
    if observation.len() <= KEPT_WHOLE {
        return Ok(observation);
    }
    off_thread(text, observation.len(), move |policy| {
        let (chat, tokenizer) = (policy.chat(), policy.tokenizer());
        let start = chat.shortest_above(tokenizer, &observation, ids_max, KEPT_WHOLE)?;
        let left_out = observation.len() - start.len();
        Ok(match left_out {
            0 => observation,
            _ => format!("{start}\n[{left_out} more bytes are not recorded]"),
        })
    })
    .await
}

/// Processes a text of this many bytes on a blocking thread, so that other episodes do not wait.
pub(super) async fn off_thread<T: Send + 'static>(
    policy: &PolicyText,
    bytes: usize,
    work: impl FnOnce(&PolicyText) -> agentgym_model::Result<T> + Send + 'static,
) -> Result<T> {
    let alone = match bytes > KEPT_WHOLE {
        // The semaphore is never closed.
        true => LONG_TEXT.acquire().await.ok(),
        false => None,
    };
    let policy = policy.clone();
    blocking(move || {
        // Held while the work runs, even if the caller no longer waits for it.
        let _alone = alone;
        Ok(work(&policy)?)
    })
    .await
}
