//! Checks of the whole table of specs.

use super::*;

#[test]
fn an_unknown_name_lists_the_known_ones() {
    assert_eq!(spec("TextCraft").expect("known").name, "textcraft");
    let message = spec("chess").expect_err("unknown").to_string();
    for known in ["chess", "textcraft", "webarena", "todo"] {
        assert!(message.contains(known), "{message}");
    }
}

#[test]
fn same_lines_ignores_order_only() {
    assert!(Replay::SameLines.accepts("a\nb", "b\na"));
    assert!(!Replay::SameLines.accepts("a\nb", "a\nb\nb"));
    assert!(!Replay::Exact.accepts("a\nb", "b\na"));
}

#[test]
fn every_environment_is_there_once_and_consistent() {
    let mut names: Vec<&str> = all().map(|spec| spec.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    for spec in all() {
        let name = spec.name;
        // A person's questions say themselves what is wanted.
        assert_eq!(spec.instruction.is_empty(), name == "dataset", "{name}");
        assert!(
            spec.instruction.len() < 700,
            "{name}: paid for in every episode"
        );
        assert!(spec.reward_scale > 0.0 && spec.rounds_max > 0, "{name}");
        assert!(spec.creates_at_once > 0, "{name}");
        // Sessions that cannot be closed have to be reused, or they accumulate on the server.
        assert!(spec.close || spec.reuse, "{name}");
        if spec.first_lists_actions.is_some() {
            assert_ne!(spec.actions, Actions::None, "{name}");
        }
        assert!(
            spec.path_prefix.is_empty() || spec.path_prefix.starts_with('/'),
            "{name}"
        );
        assert_eq!(
            first_message(spec.instruction, "o"),
            spec.first_message("o")
        );
    }
}

/// The names are those of the servers (their sources, read on 2026-11-23); by the rules of before
/// prompts have none.
#[test]
fn the_tools_are_told() {
    for (env, names) in [
        (
            "weather",
            "get_user_current_date get_user_current_location get_latitude_longitude \
             get_historical_temp get_historical_rain get_historical_snow get_temp_forecast \
             get_rain_forecast get_snow_forecast get_current_temp get_current_rain \
             get_current_snow get_historical_air_quality_index get_current_air_quality_index \
             get_air_quality_level get_distance get_elevation check_valid_actions finish",
        ),
        (
            "movie",
            "get_search_movie get_movie_details get_movie_production_companies \
             get_movie_production_countries get_movie_keywords get_movie_cast get_movie_crew \
             get_movie_alternative_titles get_movie_translation get_search_person \
             get_person_details get_person_cast get_person_crew get_person_external_ids \
             check_valid_actions finish",
        ),
        (
            "academia",
            "loadPaperNet loadAuthorNet neighbourCheck paperNodeCheck authorNodeCheck \
             authorEdgeCheck finish",
        ),
        (
            "sheet",
            "open_sheet del_sheet get_all_values get_range_values get_cell_value update_cell \
             update_range insert_rows insert_cols delete_batch_data update_cell_by_formula \
             get_value_by_formula sort_sheet_by_col merge_cells freeze_data get_A1_annotation \
             filter_cells update_note get_note finish",
        ),
        (
            "todo",
            "get_user_current_date get_user_current_location get_projects update_project \
             get_tasks get_task_description get_task_duration complete_task delete_task \
             update_task check_valid_actions finish",
        ),
    ] {
        let spec = spec(env).expect("known");
        let told = spec.told();
        let is_part = |c: char| !c.is_alphanumeric() && c != '_';
        let words: Vec<&str> = spec.tools.split(is_part).collect();
        for name in names.split_whitespace() {
            assert!(words.contains(&name), "{env}: {name}");
        }
        assert!(told.starts_with(spec.instruction) && told.ends_with(spec.tools));
    }
    let maze = spec("maze").expect("known");
    assert_eq!(maze.told(), maze.instruction);
}

#[test]
fn rewards_that_shrink_are_successes_all_the_same() {
    let babyai = spec("babyai").expect("known").success;
    assert!(babyai.holds(0.325) && !babyai.holds(0.0));
    let sciworld = spec("sciworld").expect("known");
    assert!(sciworld.success.holds(100.0 * sciworld.reward_scale));
    assert!(!sciworld.success.holds(75.0 * sciworld.reward_scale));
}

fn row(spec: &EnvSpec) -> String {
    let create = match spec.create_body {
        CreateBody::EmptyObject => "`{}`".to_owned(),
        CreateBody::Nothing => "none".to_owned(),
        CreateBody::Item(key) => format!("`{{{key}}}`"),
    };
    let fixed: String = spec
        .reset_fixed
        .iter()
        .map(|(key, value)| match value {
            Fixed::Int(number) => format!(", {key}: {number}"),
            Fixed::Text(text) => format!(", {key}: {text}"),
        })
        .collect();
    let first = match spec.first_observation {
        FirstObservation::Bare => "the reply".to_owned(),
        FirstObservation::Keys(keys) => keys.join(" + "),
        FirstObservation::Observe => "GET /observation".to_owned(),
    };
    let rule = match spec.reward_rule {
        RewardRule::EachStep => "",
        RewardRule::WhenDone => ", at the end",
        RewardRule::FirstNonZero => ", the first not 0",
    };
    let scale = match spec.reward_scale {
        1.0 => String::new(),
        scale => format!(" × {scale}"),
    };
    let errors = match spec.errors {
        ErrorShape::Soft => "200 `{error}`",
        ErrorShape::Status => "500",
        ErrorShape::InObservation(_) => "200, info null",
    };
    let success = match spec.success {
        SuccessRule::RewardAtLeast(least) => format!("≥ {least}"),
        SuccessRule::RewardAbove(bound) => format!("> {bound}"),
    };
    let actions = match spec.actions {
        Actions::None => "–".to_owned(),
        Actions::InReply(key) => format!("in replies, {key}"),
        Actions::InText(_) => "in the text".to_owned(),
        Actions::Endpoint { path, .. } => path.to_owned(),
    };
    let items = match &spec.items {
        Items::Any => "any".to_owned(),
        Items::Wrapping(count) => format!("modulo {count}"),
        Items::Within(range) => format!("{}–{}", range.start, range.end - 1),
        Items::Unknown => "by its data".to_owned(),
    };
    let replay = match spec.replay {
        Replay::Exact => "exact",
        Replay::SameLines => "same lines",
        Replay::None => "no",
    };
    let close = match (spec.close, spec.reuse) {
        (true, false) => "closed",
        (true, true) => "kept, closed at last",
        (false, _) => "kept; no /close",
    };
    let prefix = match spec.path_prefix {
        "" => String::new(),
        prefix => format!(" (`{prefix}`)"),
    };
    format!(
        "| {}{} | {} | {create} | {}{fixed} | {first} | {}{scale}{rule} | {success} | {} | {errors} | {} | {actions} | {} | {items} | {replay} | {close} |",
        spec.name,
        prefix,
        spec.id_key,
        spec.reset_key,
        spec.reward_key,
        spec.done_key,
        spec.parser.name(),
        spec.rounds_max,
    )
}

/// The table in the documentation matches this one.
#[test]
fn the_documented_table_is_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/environments.md");
    let text = std::fs::read_to_string(path).expect("the documentation");
    let rows: Vec<String> = all().map(row).collect();
    for row in &rows {
        assert!(
            text.contains(row),
            "docs/environments.md lacks a row; all of them:\n{}",
            rows.join("\n")
        );
    }
}
