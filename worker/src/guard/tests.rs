use super::*;
use crate::stages::testing::plan;
use agentgym_jobs::config::Alarm;
use agentgym_jobs::pipeline::PartId;
use agentgym_record::Stats;
use agentgym_record::metrics::{EvaluationMetrics, Metrics};
use figures::{Groups, Played, Steps};
use serde_json::{Value, json};

/// The metrics of an iteration of a run that learns.
fn sound() -> Value {
    json!({
        "episodes": {"episodes": 32, "env_faults": 0, "env_fault_rate": 0.0, "horizon": 8, "groups_excluded": 0, "ref_kl": null,
            "response_length_mean": 90.0, "prompt_length_mean": 50.0, "success": 0.5, "reward": 0.5, "rounds_mean": 4.0, "loss_tokens": 2560,
            "outcomes": {"solved": 16, "failed": 0, "horizon": 14, "length": 2}, "success_by_env": {"a": 0.6, "b": 0.4},
            "groups_mixed": 5, "groups_all_zero": 2, "groups_all_one": 1, "entropy": 0.6, "log_prob_mismatch_max": 0.0},
        "stats": {"turns": 128, "turns_unparsed": 20, "turns_cut": 5, "groups_compared": 8, "groups_identical": 0},
        "update": {"pg_loss": 0.1, "clip_fraction": 0.0, "ppo_kl": 0.01, "entropy": 0.6, "kl_loss": 0.0, "ratio_max": 3.0,
            "grad_norm": 0.5, "lr": 1e-4, "optimizer_steps": 4, "skipped_steps": 0, "trained_tokens": 2560},
    })
}

/// Sound figures with changes, each `part.name` or `part` and a value.
fn with(changes: &[(&str, Value)]) -> Figures {
    let mut all = sound();
    for (path, value) in changes {
        let (part, name) = path.split_once('.').unwrap();
        all[part][name] = value.clone();
    }
    let read = |stage, name: &str| {
        let id = PartId {
            iteration: 1,
            stage,
            part: 0,
        };
        Metrics::parse(id, &serde_json::to_vec(&all[name]).unwrap()).unwrap()
    };
    // Supervised steps have a loss.
    let loss = all["update"]["loss"].as_f64();
    Figures {
        played: Played::of(read(Stage::Advantage, "episodes")),
        turns: Stats::read(
            agentgym_jobs::pipeline::BASE_PART,
            all["stats"].as_object().unwrap(),
        )
        .unwrap()
        .turns,
        steps: Steps {
            loss,
            ..Steps::of(&read(Stage::Update, "update"))
        },
    }
}

/// What is said of a run with these figures from iteration 1 on.
fn said(overrides: &[&str], history: &[Figures]) -> Vec<Warning> {
    let plan = plan(overrides);
    let iterations = history.iter().zip(1..).map(|(figures, n)| (n, figures));
    verdicts(&Window {
        plan: &plan,
        iterations: iterations.collect(),
        evaluations: Vec::new(),
    })
}

fn names(of: &[Warning]) -> Vec<&str> {
    of.iter().map(|warning| warning.name.as_str()).collect()
}

#[test]
fn a_run_that_learns_hears_nothing() {
    for iterations in 1..20 {
        assert_eq!(said(&[], &vec![with(&[]); iterations]), []);
    }
}

/// Each alarm once: what turns it on, and from how many iterations on.
#[test]
fn every_alarm_has_its_figure() {
    let zero = [
        ("episodes.success", json!(0.0)),
        ("episodes.reward", json!(0.0)),
    ];
    let groups = |mixed: u32, zero: u32, one: u32| {
        vec![
            ("episodes.groups_mixed", json!(mixed)),
            ("episodes.groups_all_zero", json!(zero)),
            ("episodes.groups_all_one", json!(one)),
        ]
    };
    type Case<'a> = (&'a str, usize, Vec<(&'a str, Value)>);
    let cases: Vec<Case<'_>> = vec![
        ("kl", 1, vec![("update.ppo_kl", json!(-0.31))]),
        ("kl", 1, vec![("update.ppo_kl", Value::Null)]),
        ("ratio", 1, vec![("update.ratio_max", json!(1.1e6))]),
        ("grad_norm", 3, vec![("update.grad_norm", json!(101))]),
        ("loss", 1, vec![("update.loss", json!(12.1))]),
        ("grad_norm", 1, vec![("update.non_finite_steps", json!(1))]),
        ("entropy", 1, vec![("episodes.entropy", json!(0.0029))]),
        ("entropy", 1, vec![("episodes.entropy", json!(4.01))]),
        ("length", 3, vec![("stats.turns_cut", json!(65))]),
        ("no_reward", 3, [groups(0, 8, 0), zero.to_vec()].concat()),
        ("same_reward", 3, groups(0, 0, 8)),
        ("no_signal", 3, groups(0, 4, 4)),
        (
            "unsolved",
            3,
            vec![("episodes.success_by_env", json!({"a": 0.9, "b": 0.0}))],
        ),
        ("unparsed", 3, vec![("stats.turns_unparsed", json!(65))]),
        (
            "context",
            3,
            vec![("episodes.outcomes", json!({"length": 17, "solved": 15}))],
        ),
        (
            "same_samples",
            3,
            vec![("stats.groups_identical", json!(5))],
        ),
        ("unmoved", 3, vec![("update.ratio_max", json!(1.00009))]),
        (
            "unmoved",
            3,
            vec![
                ("update.optimizer_steps", json!(1)),
                ("update.lr", json!(9e-11)),
            ],
        ),
    ];
    for (name, patience, changes) in cases {
        let broken = with(&changes);
        for iterations in 1..=4 {
            let mut history = vec![with(&[]); usize::from(name != "unsolved")];
            let before = history.len() as u32;
            history.extend(vec![broken.clone(); iterations]);
            let found = said(&[], &history);
            let expected: &[&str] = if iterations < patience { &[] } else { &[name] };
            assert_eq!(names(&found), expected, "{changes:?} for {iterations}");
            if let Some(warning) = found.first() {
                assert_eq!(warning.since, before + 1, "{warning}");
                assert!(!warning.pauses && warning.cure.len() > 10, "{warning}");
                let pause = format!("guard.pause=[{name}]");
                assert!(said(&[&pause], &history)[0].pauses, "{name}");
            }
        }
        // One sound iteration ends it; a run that was never sound has no iteration to compare with.
        let over = vec![broken.clone(), broken.clone(), broken, with(&[])];
        assert_eq!(said(&[], &over), [], "{name}");
    }
}

/// The last figure that each rule lets pass.
#[test]
fn up_to_a_threshold_nothing_is_said() {
    for (path, value) in [
        ("update.ppo_kl", json!(-0.3)),
        ("update.ratio_max", json!(1e6)),
        ("update.ratio_max", json!(1.0001)),
        ("update.grad_norm", json!(100.0)),
        ("update.non_finite_steps", json!(0)),
        ("update.loss", json!(12.0)),
        ("episodes.entropy", json!(0.003)),
        ("episodes.entropy", json!(4.0)),
        ("episodes.groups_all_zero", json!(50)),
        ("episodes.outcomes", json!({"length": 16})),
        ("episodes.success_by_env", json!({"a": 0.9, "b": 0.01})),
        ("stats.turns_cut", json!(64)),
        ("stats.turns_unparsed", json!(64)),
        ("stats.groups_identical", json!(4)),
    ] {
        let said = said(&[], &vec![with(&[(path, value)]); 4]);
        assert_eq!(said, [], "{path}");
    }
}

#[test]
fn a_fall_is_seen_against_the_runs_own_best() {
    let falls = |to: f64| {
        let mut history = vec![with(&[]); 4];
        history.extend(vec![with(&[("episodes.success", json!(to))]); 3]);
        history
    };
    assert_eq!(names(&said(&[], &falls(0.1))), [""; 0]);
    assert_eq!(names(&said(&[], &falls(0.05))), ["success"]);
    let few = |mut at: Figures| {
        at.played.as_mut().unwrap().groups = Some(Groups {
            mixed: 1,
            all_zero: 0,
            all_one: 0,
        });
        at
    };
    let few: Vec<Figures> = falls(0.05).into_iter().map(few).collect();
    assert_eq!(names(&said(&[], &few)), [""; 0], "one group shows nothing");
    let short = [
        ("episodes.loss_tokens", json!(128)),
        ("episodes.success", json!(0.1)),
    ];
    assert_eq!(names(&said(&[], &[with(&[]), with(&short)])), ["length"]);
    assert_eq!(names(&said(&[], &[with(&[]), with(&short[..1])])), [""; 0]);
}

#[test]
fn an_evaluation_far_below_its_best_is_named() {
    let plan = plan(&[]);
    let learns = with(&[]);
    let set = |success: f64| -> EvaluationMetrics {
        let score = json!({"items": 50, "items_lost": 0, "avg": null, "pass": {}, "rounds_mean": null, "fault_rate": null});
        let set = json!({"set": "s", "env": "a", "tasks": 50, "success": success, "stderr": 0.05, "success_greedy": null,
            "episodes": 50, "faults": 0, "reward": success, "rounds_mean": 2.0, "horizon": 8, "sampled": sound()["episodes"],
            "score": score});
        serde_json::from_value(set).unwrap()
    };
    let verdict = |last: f64| {
        let all = [&set(0.6), &set(last)];
        let id = |iteration| PartId {
            iteration,
            stage: Stage::Evaluate,
            part: 0,
        };
        verdicts(&Window {
            plan: &plan,
            iterations: vec![(1, &learns)],
            evaluations: vec![(id(0), vec![all[0]]), (id(1), vec![all[1]])],
        })
    };
    assert_eq!(verdict(0.4), []);
    let found = verdict(0.1);
    assert_eq!(names(&found), ["evaluation"]);
    assert_eq!((found[0].since, found[0].stage), (1, Stage::Evaluate));
}

#[test]
fn a_critics_baseline_learns_from_equal_rewards() {
    let dense = with(&[
        ("episodes.groups_mixed", json!(0)),
        ("episodes.groups_all_zero", json!(0)),
        ("episodes.groups_all_one", json!(8)),
    ]);
    let history = vec![dense; 3];
    assert_eq!(names(&said(&[], &history)), ["same_reward"]);
    assert_eq!(said(&["algorithm.adv_estimator=gae"], &history), []);
}

#[test]
fn a_cure_fits_the_cause() {
    let cold = with(&[("episodes.entropy", json!(1e-4))]);
    let from_the_start = said(&[], std::slice::from_ref(&cold));
    assert!(from_the_start[0].cure.contains("rollout.temperature"));
    let later = said(&[], &[with(&[]), cold]);
    assert!(later[0].cure.contains("actor.optim.lr"), "{}", later[0]);
    let solved = with(&[
        ("episodes.entropy", json!(1e-4)),
        ("episodes.success", json!(0.95)),
    ]);
    assert_eq!(said(&[], &[solved]), [], "it may be sure of itself");
    let nothing = with(&[
        ("episodes.entropy", json!(0.0)),
        ("episodes.loss_tokens", json!(0)),
    ]);
    assert_eq!(said(&[], &[nothing]), [], "a mean of nothing is 0");
    let control = said(&["algorithm.scramble_advantages=true"], &[with(&[])]);
    assert_eq!(names(&control), ["scrambled"]);
}

#[test]
fn a_limit_must_be_left_for_as_long_as_the_patience() {
    let limit = ["guard.entropy_min=0.1", "guard.patience=3"];
    let falls = |at: usize| -> Vec<Figures> {
        let of = |n| if n >= at { 0.05 } else { 1.0 };
        (1..=10)
            .map(|n| with(&[("episodes.entropy", json!(of(n)))]))
            .collect()
    };
    assert_eq!(said(&limit, &falls(9)), []);
    let found = said(&limit, &falls(8));
    assert_eq!((found[0].since, found[0].pauses), (8, true));
    let what = &found[0].what;
    assert!(what.contains("0.0500 is below guard.entropy_min"), "{what}");
    // One sound iteration in between restarts the count.
    let mut spiked = falls(6);
    spiked[8] = with(&[]);
    assert_eq!(said(&limit, &spiked), []);
}

#[test]
fn every_figure_has_its_limit() {
    for (limit, path, value) in [
        ("guard.entropy_max=2", "episodes.entropy", 3.0),
        ("guard.grad_norm_max=5", "update.grad_norm", 9.0),
        (
            "guard.mismatch_max=0.1",
            "episodes.log_prob_mismatch_max",
            0.5,
        ),
    ] {
        let off = vec![with(&[(path, json!(value))]); 3];
        let found = said(&[limit], &off);
        assert!(limit.starts_with(&found[0].name), "{found:?}");
        assert_eq!(said(&[limit], &vec![with(&[]); 3]), [], "{limit}");
        assert!(is_guarded(&plan(&[limit])));
    }
    assert!(!is_guarded(&plan(&[])) && is_guarded(&plan(&["guard.pause=[kl]"])));
}

#[test]
fn success_is_held_against_its_own_best() {
    let limit = ["guard.success_share_min=0.5", "guard.patience=2"];
    let curve = |values: &[f64]| -> Vec<Figures> {
        let one = |value: &f64| with(&[("episodes.success", json!(value))]);
        values.iter().map(one).collect()
    };
    // A single bad iteration is noise.
    assert_eq!(said(&limit, &curve(&[0.1, 0.6, 0.6, 0.1])), []);
    let found = said(&limit, &curve(&[0.1, 0.6, 0.6, 0.1, 0.1]));
    assert_eq!(found[0].since, 4);
}

#[test]
fn the_message_names_a_policy_that_is_still_there() {
    let plan = plan(&[
        "trainer.total_training_steps=100",
        "trainer.save_freq=10",
        "run.id=r",
        "guard.pause=[kl,entropy]",
    ]);
    let of = |name: &str, since| Warning {
        name: name.into(),
        since,
        iteration: since,
        stage: Stage::Update,
        what: "entropy".into(),
        cure: "lower it".into(),
        pauses: true,
    };
    let said = |latest, since| message(&plan, latest, &of("guard.entropy_min", since), "s3://b/p");
    let far = said(39, 37);
    let command = "agentgym-submit fork r --iteration 30 --fresh-optimizer --store s3://b/p`";
    assert!(far.contains(command), "{far}");
    // The last two optimizer states are kept.
    let near = said(39, 39);
    assert!(near.contains("--iteration 38 --store"), "{near}");
    assert!(said(5, 3).contains("--iteration 0 --store"));
    assert!(near.contains("guard.patience=13"), "{near}");
    let alarm = message(&plan, 5, &of("kl", 3), "s3://b/p");
    assert!(alarm.contains("'guard.pause=[entropy]'"), "{alarm}");
    assert!(plan.config.guard.pause.contains(&Alarm::Kl));
}

#[test]
fn a_look_at_a_long_run_reads_its_begin_and_its_end() {
    let mut all: Vec<u32> = (0..100).collect();
    figures::thin(&mut all, 3);
    assert_eq!(all, [vec![0, 1, 2], (88..100).collect()].concat());
    figures::thin(&mut all, 3);
    assert_eq!(all.len(), 15, "once is as often as twice");
}

#[test]
fn a_warning_is_given_once_until_it_ends() {
    let mut told = Warned::default();
    let mut say = |since, iteration| {
        let of = said(&[], &[with(&[("update.loss", json!(40.0))])]).remove(0);
        told.is_new(&Warning {
            since,
            iteration,
            ..of
        })
    };
    assert!(say(1, 1) && !say(1, 2) && !say(1, 3));
    // The first iteration of a long row is no longer looked at.
    assert!(!say(4, 15) && !say(5, 16));
    assert!(say(18, 18), "iteration 17 was sound");
}
