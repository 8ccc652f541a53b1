//! The tools of the five tool environments, as the model is told of them. The servers name them in
//! no reply, so a prompt without them cannot be played by.

/// How a call is written, before the lists.
macro_rules! list {
    ($($line:literal)+) => {
        concat!("Tools, with the arguments that each takes as a JSON object:", $("\n- ", $line),+)
    };
}

pub(super) const WEATHER: &str = list!(
    "get_user_current_date {}, get_user_current_location {}: today, and the user's city"
    "get_latitude_longitude {name}: up to three places of that name"
    "get_historical_temp, get_historical_rain, get_historical_snow {latitude, longitude, start_date, end_date}: daily values; both days before today, at most 30 days apart; a date is YYYY-MM-DD"
    "get_temp_forecast, get_rain_forecast, get_snow_forecast {latitude, longitude, start_date, end_date}: the same; both days after today"
    "get_current_temp, get_current_rain, get_current_snow {latitude, longitude, current_date}: today's"
    "get_historical_air_quality_index {latitude, longitude, start_date, end_date}, get_current_air_quality_index {latitude, longitude, current_date}: the index of fine dust"
    "get_air_quality_level {air_quality_index}: the index in words"
    "get_distance {latitude1, longitude1, latitude2, longitude2}: in kilometres"
    "get_elevation {latitude, longitude}"
    "check_valid_actions {}: the names of all tools"
    "finish {answer}: a text, a number or a list; ends the task"
);

pub(super) const MOVIE: &str = list!(
    "get_search_movie {movie_name}: a film's id, title and summary"
    "get_movie_details {movie_id}: title, budget, genres, revenue, vote_average, release_date; an id is a text"
    "get_movie_production_companies, get_movie_production_countries, get_movie_keywords {movie_id}"
    "get_movie_cast, get_movie_crew {movie_id}: at most ten people each"
    "get_movie_alternative_titles, get_movie_translation {movie_id}"
    "get_search_person {person_name}: a person's id"
    "get_person_details {person_id}: biography, birthday, place_of_birth"
    "get_person_cast, get_person_crew {person_id}: at most ten films each"
    "get_person_external_ids {person_id}: ids at other sites"
    "check_valid_actions {}: the names of all tools"
    "finish {answer}: a text, a number or a list; ends the task"
);

pub(super) const ACADEMIA: &str = list!(
    "loadPaperNet {}, loadAuthorNet {}: load a graph; each comes before the first use of its graph"
    "neighbourCheck {graph, node}: graph is PaperNet or AuthorNet; the papers that a title cites, or a person's co-authors"
    "paperNodeCheck {node}: a title's year, venue, number of citations, keywords and type"
    "authorNodeCheck {node}: a person's name and organisation"
    "authorEdgeCheck {node1, node2}: the papers that two people wrote together"
    "finish {answer}: a text, a number or a list; ends the task"
);

pub(super) const SHEET: &str = list!(
    "open_sheet {name}: comes before all others; del_sheet {name}. A position is like A1; rows and columns count from 1"
    "get_all_values {}, get_range_values {start_position, end_position}, get_cell_value {position}"
    "update_cell {position, value}, update_range {start_position, end_position, values_list}: values_list is a list of rows"
    "insert_rows {values_list, row_idx}, insert_cols {values_list, col_idx}"
    "delete_batch_data {dimension, index_list}: dimension is row or col"
    "update_cell_by_formula {operator, result_position, position_list} or {operator, result_position, start_position, end_position}: SUM, AVERAGE, COUNT, MAX, MIN, MINUS or PRODUCT"
    "get_value_by_formula {operator, position_list} or {operator, start_position, end_position}"
    "sort_sheet_by_col {col_num, order}: order is asc or des"
    "merge_cells {start_position, end_position}, freeze_data {dimension, num}: dimension is rows or columns"
    "get_A1_annotation {row, col}, filter_cells {query, in_row, in_column}"
    "update_note {position, content}, get_note {position}"
    "finish {}: ends the task"
);

pub(super) const TODO: &str = list!(
    "get_user_current_date {}, get_user_current_location {}"
    "get_projects {}: id, name, order, color and is_favorite of each"
    "update_project {project_id, is_favorite}: is_favorite is the text True or False"
    "get_tasks {project_id}: id, order, content, is_completed, priority and due_date of each"
    "get_task_description {task_id}, get_task_duration {task_id}"
    "complete_task {task_id}, delete_task {task_id}, update_task {task_id, due_date}"
    "check_valid_actions {}: the names of all tools"
    "finish {answer}: a text, a number or a list, or done where nothing was asked; ends the task"
);
