//! Options from the environment and from a TOML file, added to the one declaration that clap has of them.
//!
//! Every long option of every command is also the variable `OXIDE_INFER_<NAME>` and the key `<name>` of the file. A flag
//! goes before the environment, the environment before the file, and the file before the default. In the file, a key at
//! the top applies to every command that has the option; a key in a command's table, such as `[serve]`, to that command
//! only, and goes before one at the top.

use clap::{Arg, ArgAction, Command};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Why the configuration file was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration file {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration file {path} is not valid TOML: {message}")]
    Syntax { path: PathBuf, message: String },
    #[error("unknown key `{key}` in the configuration file {path}{hint}")]
    UnknownKey { path: PathBuf, key: String, hint: String },
    #[error(
        "the key `{key}` in the configuration file {path} is {found}; expected a string, number, boolean, or an array of these"
    )]
    WrongType { path: PathBuf, key: String, found: &'static str },
    #[error("the key `{key}` in the configuration file {path} has {count} values; it takes one")]
    TooMany { path: PathBuf, key: String, count: usize },
}

/// What a configuration file says: for each command, the values of its options.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    /// Command, then option, then values.
    values: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl ConfigFile {
    /// Reads a file and checks its keys against the options that `command` declares.
    pub(crate) fn read(path: &Path, command: &Command) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text, command)
    }

    fn parse(path: &Path, text: &str, command: &Command) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        let mut file = ConfigFile { path: path.to_owned(), values: BTreeMap::new() };
        for (key, value) in &table {
            match (value, command.find_subcommand(key)) {
                (toml::Value::Table(_), Some(_)) => {}
                _ => file.set_for_all(command, key, value)?,
            }
        }
        for (name, value) in &table {
            if let (toml::Value::Table(options), Some(subcommand)) = (value, command.find_subcommand(name)) {
                for (key, value) in options {
                    file.set(subcommand, key, &format!("{name}.{key}"), value)?;
                }
            }
        }
        Ok(file)
    }

    fn set_for_all(&mut self, command: &Command, key: &str, value: &toml::Value) -> Result<(), ConfigError> {
        let mut known = false;
        for subcommand in command.get_subcommands() {
            if configurable(subcommand).any(|arg| arg.get_long() == Some(key)) {
                known = true;
                self.set(subcommand, key, key, value)?;
            }
        }
        if known { Ok(()) } else { Err(self.unknown(command.get_subcommands(), key, key)) }
    }

    fn set(
        &mut self,
        subcommand: &Command,
        key: &str,
        shown: &str,
        value: &toml::Value,
    ) -> Result<(), ConfigError> {
        let Some(arg) = configurable(subcommand).find(|arg| arg.get_long() == Some(key)) else {
            return Err(self.unknown(std::iter::once(subcommand), key, shown));
        };
        let values = self.strings(shown, value)?;
        if values.len() != 1 && !matches!(arg.get_action(), ArgAction::Append) {
            return Err(ConfigError::TooMany {
                path: self.path.clone(),
                key: shown.to_owned(),
                count: values.len(),
            });
        }
        self.values.entry(subcommand.get_name().to_owned()).or_default().insert(key.to_owned(), values);
        Ok(())
    }

    fn strings(&self, key: &str, value: &toml::Value) -> Result<Vec<String>, ConfigError> {
        let wrong = |found| ConfigError::WrongType { path: self.path.clone(), key: key.to_owned(), found };
        match value {
            toml::Value::String(text) => Ok(vec![text.clone()]),
            toml::Value::Integer(number) => Ok(vec![number.to_string()]),
            toml::Value::Float(number) => Ok(vec![number.to_string()]),
            toml::Value::Boolean(flag) => Ok(vec![flag.to_string()]),
            toml::Value::Array(items) => {
                let mut values = Vec::new();
                for item in items {
                    values.extend(self.strings(key, item)?);
                }
                Ok(values)
            }
            toml::Value::Table(_) => Err(wrong("a table")),
            toml::Value::Datetime(_) => Err(wrong("a date")),
        }
    }

    fn unknown<'a>(
        &self,
        commands: impl Iterator<Item = &'a Command>,
        key: &str,
        shown: &str,
    ) -> ConfigError {
        let dashed = key.replace('_', "-");
        let hint = commands
            .flat_map(configurable)
            .filter_map(Arg::get_long)
            .find(|name| *name == dashed)
            .map(|name| format!("; did you mean `{name}`?"))
            .unwrap_or_default();
        ConfigError::UnknownKey { path: self.path.clone(), key: shown.to_owned(), hint }
    }

    /// The file's path if it gives this value to the option of the command.
    pub(crate) fn source_of(&self, command: &str, option: &str, value: &str) -> Option<&Path> {
        let values = self.values.get(command)?.get(option)?;
        values.iter().any(|v| v == value).then_some(self.path.as_path())
    }

    /// Makes the file's values the defaults of the options.
    pub(crate) fn apply(&self, mut command: Command) -> Command {
        for (name, options) in &self.values {
            command = command.mut_subcommand(name, |mut subcommand| {
                for (long, values) in options {
                    let id = configurable(&subcommand)
                        .find(|arg| arg.get_long() == Some(long))
                        .map(|arg| arg.get_id().clone());
                    if let Some(id) = id {
                        subcommand =
                            subcommand.mut_arg(id, |arg| arg.required(false).default_values(values.clone()));
                    }
                }
                subcommand
            });
        }
        command
    }
}

/// Lets every option also come from `OXIDE_INFER_<NAME>`.
pub(crate) fn with_environment(mut command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |mut subcommand| {
            let options: Vec<_> = configurable(&subcommand)
                .filter_map(|arg| Some((arg.get_id().clone(), variable(arg.get_long()?))))
                .collect();
            for (id, variable) in options {
                subcommand = subcommand.mut_arg(id, |arg| arg.env(variable));
            }
            subcommand
        });
    }
    command
}

pub(super) fn variable(long: &str) -> String {
    format!("OXIDE_INFER_{}", long.replace('-', "_").to_ascii_uppercase())
}

/// The options of a command that the environment and the file may set.
fn configurable(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        arg.get_long().is_some_and(|long| !matches!(long, "config" | "help" | "version"))
            && matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
    })
}

/// The file to read: `--config FILE` among the arguments, `OXIDE_INFER_CONFIG`, or the user's own file if there is one.
pub(crate) fn config_path(args: &[OsString], env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = config_argument(args).or_else(|| env("OXIDE_INFER_CONFIG")).filter(|p| !p.is_empty())
    {
        return Some(PathBuf::from(path));
    }
    let home = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = home("XDG_CONFIG_HOME").or_else(|| home("HOME").map(|home| home.join(".config")))?;
    let path = folder.join("oxide-infer").join("config.toml");
    path.is_file().then_some(path)
}

fn config_argument(args: &[OsString]) -> Option<OsString> {
    let mut args = args.iter().skip(1).take_while(|arg| *arg != OsStr::new("--"));
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().cloned();
        }
        if let Some(value) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        ConfigFile::parse(Path::new("config.toml"), text, &Cli::command())
    }

    #[test]
    fn a_commands_table_goes_before_the_top_of_the_file() {
        let file = parse("model = 'a.gguf'\n[serve]\nmodel = 'b.gguf'\nport = 81\n").unwrap();
        assert_eq!(file.values["serve"]["model"], ["b.gguf"]);
        assert_eq!(file.values["serve"]["port"], ["81"]);
        assert_eq!(file.values["run"]["model"], ["a.gguf"]);
    }

    #[test]
    fn an_array_gives_a_repeatable_option_all_its_values() {
        let file = parse("[serve]\napi-key = ['one', 'two']\n").unwrap();
        assert_eq!(file.values["serve"]["api-key"], ["one", "two"]);
        let error = parse("[serve]\nport = [1, 2]\n").unwrap_err().to_string();
        assert!(error.contains("`serve.port`") && error.contains("2 values"), "{error}");
    }

    #[test]
    fn unknown_keys_are_named() {
        let error = parse("prot = 1\n").unwrap_err().to_string();
        assert!(error.contains("unknown key `prot`") && error.contains("config.toml"), "{error}");
        let error = parse("[serve]\nmax_model_len = 1\n").unwrap_err().to_string();
        assert!(
            error.contains("`serve.max_model_len`") && error.contains("did you mean `max-model-len`"),
            "{error}"
        );
        let error = parse("[serf]\nport = 1\n").unwrap_err().to_string();
        assert!(error.contains("unknown key `serf`"), "{error}");
        let error = parse("[serve]\nconfig = 'x'\n").unwrap_err().to_string();
        assert!(error.contains("unknown key `serve.config`"), "{error}");
    }

    #[test]
    fn wrong_types_and_syntax_are_named() {
        let error = parse("[serve.port]\nx = 1\n").unwrap_err().to_string();
        assert!(error.contains("`serve.port`") && error.contains("a table"), "{error}");
        assert!(parse("port 1").unwrap_err().to_string().contains("not valid TOML"));
    }

    #[test]
    fn the_file_is_found_by_flag_then_environment_then_home() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("oxide-infer").join("config.toml");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "").unwrap();
        let xdg = folder.path().as_os_str().to_owned();
        let env = |name: &str| match name {
            "XDG_CONFIG_HOME" => Some(xdg.clone()),
            _ => None,
        };
        let named = |name: &str| match name {
            "OXIDE_INFER_CONFIG" => Some("env.toml".into()),
            _ => None,
        };
        let args = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(config_path(&args(&["x", "serve"]), env), Some(own));
        assert_eq!(config_path(&args(&["x", "serve"]), named), Some("env.toml".into()));
        assert_eq!(config_path(&args(&["x", "serve", "--config=a.toml"]), named), Some("a.toml".into()));
        assert_eq!(config_path(&args(&["x", "--config", "a.toml", "serve"]), named), Some("a.toml".into()));
        assert_eq!(config_path(&args(&["x", "run", "--", "--config", "a"]), |_| None), None);
    }
}
