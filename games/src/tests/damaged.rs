//! Damaged or malicious addresses and replies of a simulator: they are read or refused, without a panic.

use crate::mutations::survives;
use crate::parse;
use crate::sciworld::Reply;
use agentgym_envs::builtin::is_builtin;

#[test]
fn addresses() {
    let corpus = [
        "builtin",
        "builtin:worlds?depths=1-3&lines=4-8&words=wide&ttl_s=7&sessions_max=9",
        "builtin:folder?path=/a%20b&order=c&distractors=3",
        "builtin:babyai?compat=original&seed=4",
        "builtin:searchqa?corpus=a&questions=b&index=c&top_k=3&uncased=true",
        "builtin:wordle?seed=3",
        "builtin:maze",
    ]
    .map(|text| text.as_bytes().to_vec());
    survives("address", &corpus, 4000, 1 << 20, |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = is_builtin(text);
            let _ = parse(text);
        }
    });
}

#[test]
fn answers_of_a_gateway() {
    let corpus: Vec<Vec<u8>> = [
        "!ysa\\nb\\\\\n",
        "!yi12\n",
        "!yd0.5\n",
        "!ybtrue\n",
        "!yro7\n",
        "!xsno\n",
    ]
    .map(|line| line.as_bytes().to_vec())
    .into();
    survives("gateway", &corpus, 4000, 1 << 20, |bytes| {
        let _ = Reply::read(&String::from_utf8_lossy(bytes));
    });
}
