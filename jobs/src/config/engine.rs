//! What a run must say that lets an inference server generate: where it is, and how training takes
//! into account that its numbers are not ours.

use super::types::{Config, Numerics, Pipeline, RolloutEngine};
use crate::{Error, Result};

const ENGINE: &str = "actor_rollout_ref.rollout.engine";
const URL: &str = "actor_rollout_ref.rollout.server.url";
const DIALECT: &str = "actor_rollout_ref.rollout.server.dialect";

/// Everything that is missing is named at once.
pub(super) fn check(config: &Config) -> Result<()> {
    let (rollout, algorithm) = (&config.actor_rollout_ref.rollout, &config.algorithm);
    let server = &rollout.server;
    if rollout.engine == RolloutEngine::Own {
        return match (&server.url, server.dialect) {
            (None, None) => Ok(()),
            (url, _) => Err(Error::value(
                if url.is_some() { URL } else { DIALECT },
                format!("is not used where {ENGINE} is own; set that to server, or leave this out"),
            )),
        };
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
    let missing = wanted.iter().filter(|(is_missing, _)| *is_missing);
    let missing: Vec<&str> = missing.map(|(_, what)| *what).collect();
    if !missing.is_empty() {
        return Err(Error::value(
            ENGINE,
            format!(
                "a server's numbers are not ours, so that training must correct for them and stop where they \
                 are too far off; set also {}",
                missing.join("; ")
            ),
        ));
    }
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
}
