//! Invented words, and lines of invented text worlds, from a seed.
//!
//! The tokenizer of a tiny model is trained on invented text, so that it contains no
//! task that the model is later tested on. Words are pronounceable, of one to three
//! syllables, with letter clusters as in English.

/// Possible starts of a syllable.
const ONSETS: [&str; 40] = [
    "b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j",
    "k", "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sc", "sh", "sl", "sp", "st", "str", "t",
    "th", "tr", "v", "w", "y", "z",
];
const NUCLEI: [&str; 14] = [
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ee", "oo", "ou",
];
/// Possible ends of a syllable; often empty, so that words stay short.
const CODAS: [&str; 24] = [
    "", "", "", "", "", "b", "ck", "d", "g", "l", "ll", "m", "n", "nd", "ng", "nk", "p", "r", "rd",
    "rn", "s", "st", "t", "x",
];

/// A stream of choices that depends on its seed and label alone.
#[derive(Debug, Clone)]
pub struct Choices {
    reader: blake3::OutputReader,
}

impl Choices {
    /// The stream of `seed` for the purpose `label`.
    pub fn new(seed: u64, label: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(label.as_bytes());
        Choices {
            reader: hasher.finalize_xof(),
        }
    }

    /// The next bytes of the stream.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.reader.fill(bytes);
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        // Scaling by 2^-64: the bias is below bound / 2^64, which is negligible.
        ((u128::from(u64::from_le_bytes(bytes)) * bound as u128) >> 64) as usize
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}

/// `count` different words. The first ones are the same for every larger count.
pub fn words(seed: u64, count: usize) -> Vec<String> {
    let mut choices = Choices::new(seed, "words");
    let mut seen = std::collections::BTreeSet::new();
    let mut words = Vec::with_capacity(count);
    while words.len() < count {
        let word = word(&mut choices);
        if word.len() > 2 && seen.insert(word.clone()) {
            words.push(word);
        }
    }
    words
}

fn word(choices: &mut Choices) -> String {
    let syllables = [1, 1, 2, 2, 2, 3][choices.below(6)];
    let mut word = String::new();
    for _ in 0..syllables {
        word.push_str(choices.pick(&ONSETS));
        word.push_str(choices.pick(&NUCLEI));
        word.push_str(choices.pick(&CODAS));
    }
    word
}

/// Lines in the style of text worlds, with `words` as their objects: recipes,
/// inventories, actions and the chat around them. For training a tokenizer.
pub fn lines(seed: u64, words: &[String], count: usize) -> impl Iterator<Item = String> + '_ {
    let mut choices = Choices::new(seed, "lines");
    (0..count).map(move |_| line(&mut choices, words))
}

fn line(choices: &mut Choices, words: &[String]) -> String {
    let mut thing = || {
        let adjective = match choices.below(3) {
            0 => words[choices.below(words.len())].clone() + " ",
            _ => String::new(),
        };
        adjective + &words[choices.below(words.len())]
    };
    let (a, b, c) = (thing(), thing(), thing());
    let (n, m) = (1 + choices.below(9), 1 + choices.below(64));
    match choices.below(16) {
        0 | 1 => format!("craft {n} {a} using {m} {b}, {n} {c}"),
        2 => format!("craft {a} using {n} {b}"),
        3 => format!("Crafting commands:\ncraft {n} {a} using {m} {b}\n\nGoal: craft {c}."),
        4 | 5 => format!("Action: craft {a} using {n} {b}, {n} {c}"),
        6 | 7 => format!("Thought: {a} using {n} {b}, {n} {c}\nAction: get {n} {b}"),
        8 => format!("Action: get {n} {a}"),
        9 => "Action: inventory".to_owned(),
        10 => format!("Inventory: [{a}] ({n}) [{b}] ({m})"),
        11 => format!("Inventory: You are not carrying anything.\nGot {n} {a}"),
        12 => format!("Crafted {n} minecraft:{}", a.replace(' ', "_")),
        13 => format!(
            "Could not find enough items to craft minecraft:{}",
            a.replace(' ', "_")
        ),
        14 => format!("Could not find {a}\nCould not execute get {n} {a}"),
        _ => "system\nCraft the goal.\nuser\nassistant\nThought: \nAction: ".to_owned(),
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn words_are_different_readable_and_depend_on_the_seed_alone() {
        let words = super::words(7, 500);
        assert_eq!(words, super::words(7, 800)[..500]);
        assert_ne!(words, super::words(8, 500));
        let set: std::collections::BTreeSet<_> = words.iter().collect();
        assert_eq!(set.len(), words.len());
        for word in &words {
            assert!(word.bytes().all(|b| b.is_ascii_lowercase()), "{word}");
            assert!((3..=24).contains(&word.len()), "{word}");
            assert!(word.contains(['a', 'e', 'i', 'o', 'u']), "{word}");
        }
    }

    #[test]
    fn lines_repeat_for_a_seed_and_differ_between_seeds() {
        let words = super::words(1, 50);
        let text = |seed| super::lines(seed, &words, 200).collect::<Vec<_>>();
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
        assert!(text(3).iter().any(|line| line.starts_with("Action: craft")));
    }
}
