//! docs/JSON.md as a judge of documents: it says which types a command prints, and which fields a type has.

use std::collections::HashMap;

use serde_json::Value;

/// The contract as the document has it.
pub struct Contract {
    /// The types of each command, as the table of commands links them.
    commands: HashMap<String, Vec<String>>,
    /// The fields of each type.
    types: HashMap<String, Vec<Field>>,
}

struct Field {
    name: String,
    words: String,
}

impl Contract {
    /// Reads docs/JSON.md.
    pub fn read() -> Contract {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/JSON.md");
        let text = std::fs::read_to_string(path).expect("the document is there");
        let mut contract = Contract { commands: HashMap::new(), types: HashMap::new() };
        let mut current = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("### ") {
                name.clone_into(&mut current);
                contract.types.insert(current.clone(), Vec::new());
            }
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            match cells.as_slice() {
                [name, words, ..] if !current.is_empty() && name.starts_with('`') => {
                    let fields = contract.types.get_mut(&current).expect("the section has begun");
                    fields.push(Field { name: name.replace('`', ""), words: (*words).to_owned() });
                }
                [commands, types] if current.is_empty() && types.contains("](#") => {
                    for command in commands.split(", ") {
                        contract.commands.insert(command.replace('`', ""), linked(types));
                    }
                }
                _ => {}
            }
        }
        contract
    }

    /// Whether the document has a row for a command, or for its subcommands.
    pub fn has_command(&self, command: &str) -> bool {
        self.commands.keys().any(|known| known == command || known.starts_with(&format!("{command} ")))
    }

    /// Checks a document of a command on stdout.
    pub fn check(&self, command: &str, document: &Value) -> Result<(), String> {
        let types = self.commands.get(command).ok_or_else(|| format!("no row for {command}"))?;
        self.check_one_of(types, document)
    }

    /// Checks a document on stderr.
    pub fn check_stderr(&self, document: &Value) -> Result<(), String> {
        self.check_one_of(&["ErrorDocument", "NoteDocument", "EndOfRun"].map(str::to_owned), document)
    }

    fn check_one_of(&self, types: &[String], document: &Value) -> Result<(), String> {
        let mut document = document.clone();
        let fields = document.as_object_mut().ok_or("a document is an object")?;
        if fields.remove("version") != Some(1.into()) {
            return Err("no version".to_owned());
        }
        let wrong: Vec<String> =
            types.iter().filter_map(|name| self.check_type(name, &document).err()).collect();
        if wrong.len() < types.len() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    fn check_type(&self, name: &str, value: &Value) -> Result<(), String> {
        let fields = self.types.get(name).ok_or_else(|| format!("no table for {name}"))?;
        let object = value.as_object().ok_or_else(|| format!("{name} is an object: {value}"))?;
        for Field { name: field, words } in fields {
            match (object.get(field), words.strip_suffix(", or absent")) {
                (None, Some(_)) => {}
                (None, None) => return Err(format!("{name} lacks {field}")),
                (Some(value), there) => {
                    let checked = self.check_words(there.unwrap_or(words), value);
                    checked.map_err(|reason| format!("{name}.{field}: {reason}"))?;
                }
            }
        }
        match object.keys().find(|key| !fields.iter().any(|field| field.name == **key)) {
            Some(unknown) => Err(format!("{name} has {unknown}, which docs/JSON.md does not know")),
            None => Ok(()),
        }
    }

    fn check_words(&self, words: &str, value: &Value) -> Result<(), String> {
        if let Some(there) = words.strip_suffix(" or null") {
            return if value.is_null() { Ok(()) } else { self.check_words(there, value) };
        }
        if let Some(each) = words.strip_prefix("list of ") {
            let elements = value.as_array().ok_or_else(|| format!("{value} is no list"))?;
            return elements.iter().try_for_each(|element| self.check_words(each, element));
        }
        let is_right = match words {
            "text" => value.is_string(),
            "moment" => value.as_str().is_some_and(is_moment),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            _ if words.starts_with("one of ") => {
                value.as_str().is_some_and(|value| words.contains(&format!("`{value}`")))
            }
            _ if words.contains("](#") => return self.check_type(&linked(words)[0], value),
            _ => value.is_array() && words.starts_with('['),
        };
        if is_right { Ok(()) } else { Err(format!("{value} is not {words}")) }
    }
}

/// The names of the links `[Name](#name)` in a text.
fn linked(text: &str) -> Vec<String> {
    let links = text.split('[').skip(1).filter_map(|link| link.split_once("](#"));
    links.map(|(name, _)| name.to_owned()).collect()
}

/// `2026-11-21T22:32:09.970732145Z`, or `@` and seconds.
fn is_moment(text: &str) -> bool {
    let like = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let form: String = text.chars().map(like).collect();
    form == "0000-00-00T00:00:00.000000000Z"
        || text.strip_prefix('@').is_some_and(|s| s.parse::<i64>().is_ok())
}
