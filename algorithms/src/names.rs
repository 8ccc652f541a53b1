//! Choices that users name in a configuration. One table gives an enum its
//! spelling, its aliases, its parser and its serde form, so that the names in
//! an error message are always the names that are accepted.

/// Declares an enum whose variants have names. The first spelling is the one that
/// is written; all are accepted when read.
macro_rules! named {
    (
        $(#[$enum_meta:meta])*
        pub enum $name:ident, called $what:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $spelling:literal $(or $alias:literal)* ),+ $(,)?
        }
    ) => {
        $(#[$enum_meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant ),+
        }

        impl $name {
            /// Every variant, in the order of its declaration.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),+ ];

            /// The name under which this choice is configured and reported.
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $spelling ),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::Error;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $( $spelling $( | $alias )* => Ok(Self::$variant), )+
                    _ => Err($crate::Error::UnknownName {
                        what: $what,
                        found: name.to_owned(),
                        known: [ $( $spelling $(, $alias )* ),+ ].join(", "),
                    }),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use named;
