//! Types that the source serialises, as the tables of docs/JSON.md.
//!
//! A table has a row for each field: its name, its type in words, and the first paragraph of its comment.

use std::collections::BTreeMap;
use std::fmt::Write;

use syn::{Attribute, Expr, ExprLit, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type};

/// Types that serialise themselves, with the words for them.
const OWN_FORMS: [(&str, &str); 3] =
    [("Rfc3339", "moment"), ("FindingCode", "integer"), ("DumpValue", "structure")];

/// The serialised types of source files, by name.
#[derive(Default)]
pub struct JsonTypes {
    types: BTreeMap<String, Vec<Item>>,
}

/// One field as JSON has it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    name: String,
    words: String,
    meaning: String,
}

impl JsonTypes {
    /// Adds the types of a source file.
    ///
    /// # Errors
    /// The text is no Rust.
    pub fn add(&mut self, source: &str) -> syn::Result<()> {
        self.add_items(syn::parse_file(source)?.items);
        Ok(())
    }

    fn add_items(&mut self, items: Vec<Item>) {
        for item in items {
            let (name, attributes) = match &item {
                Item::Struct(found) => (found.ident.to_string(), &found.attrs),
                Item::Enum(found) => (found.ident.to_string(), &found.attrs),
                Item::Mod(inner) => {
                    let is_test = inner.attrs.iter().any(|attribute| attribute.path().is_ident("cfg"));
                    if let (Some((_, items)), false) = (&inner.content, is_test) {
                        self.add_items(items.clone());
                    }
                    continue;
                }
                _ => continue,
            };
            if words_of(attributes, "derive").contains("Serialize") {
                self.types.entry(name).or_default().push(item);
            }
        }
    }

    /// The tables of these types, in this order, each followed by the types of its fields.
    ///
    /// # Errors
    /// A type is not found, is there twice, or has a form that the tables cannot show.
    pub fn tables(&self, roots: &[String]) -> Result<String, String> {
        let mut text = String::new();
        let mut shown: Vec<String> = Vec::new();
        let mut waiting: Vec<String> = roots.iter().rev().cloned().collect();
        while let Some(name) = waiting.pop() {
            if shown.contains(&name) {
                continue;
            }
            let Item::Struct(found) = self.item(&name)? else {
                return Err(format!("{name} is no struct"));
            };
            let meaning = first_paragraph(&found.attrs);
            writeln!(text, "\n### {name}\n\n{meaning}\n\n| field | type | meaning |\n|---|---|---|")
                .expect("a string takes everything");
            let mut inner = Vec::new();
            for field in self.fields(&name, &mut inner)? {
                writeln!(text, "| `{}` | {} | {} |", field.name, field.words, field.meaning)
                    .expect("a string takes everything");
            }
            waiting.extend(inner.into_iter().rev());
            shown.push(name);
        }
        Ok(text)
    }

    fn item(&self, name: &str) -> Result<&Item, String> {
        match self.types.get(name).map(Vec::as_slice) {
            Some([one]) => Ok(one),
            Some(_) => Err(format!("{name} is the name of several serialised types")),
            None => Err(format!("{name} is no serialised type of these crates")),
        }
    }

    /// The fields of a struct. Structs in them are added to `inner`.
    fn fields(&self, name: &str, inner: &mut Vec<String>) -> Result<Vec<Field>, String> {
        let Item::Struct(found) = self.item(name)? else { return Err(format!("{name} is no struct")) };
        let Fields::Named(named) = &found.fields else { return Err(format!("{name} has no named fields")) };
        let mut fields = Vec::new();
        for field in &named.named {
            let how = words_of(&field.attrs, "serde");
            let has = |word: &str| how.split(',').any(|part| part.trim() == word);
            if has("skip") {
                continue;
            }
            if has("flatten") {
                fields.extend(self.fields(&last_name(&field.ty)?, inner)?);
                continue;
            }
            let own = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            let renamed = how.split("rename = \"").nth(1).and_then(|rest| rest.split('"').next());
            let may_be_absent = how.contains("skip_serializing_if");
            let words = self.words(&field.ty, inner).map_err(|reason| format!("{name}.{own}: {reason}"))?;
            fields.push(Field {
                name: renamed.unwrap_or(&own).to_owned(),
                words: match words.strip_suffix(" or null").filter(|_| may_be_absent) {
                    Some(there) => format!("{there}, or absent"),
                    None => words,
                },
                meaning: first_paragraph(&field.attrs).replace('|', "\\|"),
            });
        }
        Ok(fields)
    }

    /// A type in words.
    fn words(&self, of: &Type, inner: &mut Vec<String>) -> Result<String, String> {
        if let Type::Tuple(pair) = of {
            let each = pair.elems.iter().map(|one| self.words(one, inner)).collect::<Result<Vec<_>, _>>()?;
            return Ok(format!("[{}]", each.join(", ")));
        }
        let name = last_name(of)?;
        let argument = |inner: &mut Vec<String>| match arguments(of).first() {
            Some(argument) => self.words(argument, inner),
            None => Err(format!("{name} of what?")),
        };
        Ok(match name.as_str() {
            "String" | "str" | "Cow" => "text".to_owned(),
            "u8" | "u16" | "u32" | "u64" | "usize" | "i16" | "i32" | "i64" => "integer".to_owned(),
            "f64" => "number".to_owned(),
            "bool" => "boolean".to_owned(),
            "Option" => format!("{} or null", argument(inner)?),
            "Vec" => format!("list of {}", argument(inner)?),
            _ if OWN_FORMS.iter().any(|(own, _)| *own == name) => {
                let form = OWN_FORMS.iter().find(|(own, _)| *own == name);
                form.map(|(_, words)| (*words).to_owned()).unwrap_or_default()
            }
            _ => match self.item(&name)? {
                Item::Enum(found) => choices(found)?,
                _ => {
                    inner.push(name.clone());
                    format!("[{name}](#{})", name.to_lowercase())
                }
            },
        })
    }
}

/// The variants of an enum without data.
fn choices(of: &syn::ItemEnum) -> Result<String, String> {
    let how = words_of(&of.attrs, "serde");
    let word = |variant: &syn::Variant| {
        let name = variant.ident.to_string();
        if !variant.fields.is_empty() {
            return Err(format!("{} has data in {name}", of.ident));
        }
        let snake = || {
            let parts = name.chars().enumerate().map(|(at, c)| match c.is_uppercase() && at > 0 {
                true => format!("_{}", c.to_lowercase()),
                false => c.to_lowercase().to_string(),
            });
            parts.collect::<String>()
        };
        Ok(match () {
            () if how.contains("\"lowercase\"") => format!("`{}`", name.to_lowercase()),
            () if how.contains("\"snake_case\"") => format!("`{}`", snake()),
            () if how.contains("\"kebab-case\"") => format!("`{}`", snake().replace('_', "-")),
            () => format!("`{name}`"),
        })
    };
    let all = of.variants.iter().map(word).collect::<Result<Vec<_>, String>>()?;
    Ok(format!("one of {}", all.join(" ")))
}

/// The last name of a path, without references, slices and lifetimes.
fn last_name(of: &Type) -> Result<String, String> {
    match of {
        Type::Path(path) => {
            let last = path.path.segments.last().map(|segment| segment.ident.to_string());
            last.ok_or_else(|| "a path without a name".to_owned())
        }
        Type::Reference(to) => last_name(&to.elem),
        Type::Slice(_) | Type::Array(_) => Ok("Vec".to_owned()),
        _ => Err("a type that the tables cannot show".to_owned()),
    }
}

fn arguments(of: &Type) -> Vec<Type> {
    match of {
        Type::Reference(to) => arguments(&to.elem),
        Type::Slice(slice) => vec![(*slice.elem).clone()],
        Type::Array(array) => vec![(*array.elem).clone()],
        Type::Path(path) => match path.path.segments.last().map(|segment| &segment.arguments) {
            Some(PathArguments::AngleBracketed(list)) => {
                let types = list.args.iter().filter_map(|argument| match argument {
                    GenericArgument::Type(argument) => Some(argument.clone()),
                    _ => None,
                });
                types.collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The words of all attributes of this name: `skip` of `#[serde(skip)]`.
fn words_of(attributes: &[Attribute], name: &str) -> String {
    let lists = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident(name) => Some(list.tokens.to_string()),
        _ => None,
    });
    lists.collect::<Vec<_>>().join(", ")
}

/// The first paragraph of a comment for documents, as one line.
fn first_paragraph(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let lines = lines.map(|line| line.trim().to_owned()).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        /// A file of
        /// a pool.
        ///
        /// More words.
        #[derive(Debug, Serialize)]
        struct Info<'a> {
            #[serde(skip)]
            raw: OsString,
            /// Its name.
            #[serde(rename = "type")]
            kind: &'static str,
            at: Rfc3339,
            #[serde(skip_serializing_if = "Option::is_none")]
            bytes: Option<String>,
            pool: Option<u64>,
            parts: Vec<(u64, f64)>,
            severity: Severity,
            inner: &'a Inner,
            #[serde(flatten)]
            more: More,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "lowercase")]
        enum Severity { Note, Error }
        #[derive(Serialize)]
        struct Inner { ok: bool }
        #[derive(Serialize)]
        struct More { flat: i64 }
    "#;

    #[test]
    fn fields_are_shown_as_json_has_them() {
        let mut types = JsonTypes::default();
        types.add(SOURCE).expect("Rust");
        let expected = "\n### Info\n\nA file of a pool.\n\n| field | type | meaning |\n|---|---|---|\n\
            | `type` | text | Its name. |\n\
            | `at` | moment |  |\n\
            | `bytes` | text, or absent |  |\n\
            | `pool` | integer or null |  |\n\
            | `parts` | list of [integer, number] |  |\n\
            | `severity` | one of `note` `error` |  |\n\
            | `inner` | [Inner](#inner) |  |\n\
            | `flat` | integer |  |\n\
            \n### Inner\n\n\n\n| field | type | meaning |\n|---|---|---|\n| `ok` | boolean |  |\n";
        assert_eq!(types.tables(&["Info".to_owned()]).expect("shown"), expected);
    }

    #[test]
    fn a_type_that_cannot_be_shown_is_named() {
        let mut types = JsonTypes::default();
        types.add("#[derive(Serialize)] struct A { b: Unknown }").expect("Rust");
        let wrong = types.tables(&["A".to_owned()]).expect_err("not known");
        assert_eq!(wrong, "A.b: Unknown is no serialised type of these crates");
        types.add("#[derive(Serialize)] struct A { b: u8 }").expect("Rust");
        assert!(types.tables(&["A".to_owned()]).expect_err("twice").contains("several"));
    }
}
