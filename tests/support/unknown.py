"""Variables that hold secrets, and that neither drydock nor vLLM knows. Half of their names do not say so."""

VALUE = "h7nter2-z9"
UNKNOWN = (
    *("MYSQL_PWD", "HFTOKEN", "SENTRY_DSN", "PGPASSWORD", "GH_PAT", "DB_PASS", "REDIS_AUTH", "SLACK_WEBHOOK", "JWT"),
    *("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING", "COOKIE", "SSH_PRIVATE", "LICENSE", "SIGNING_SALT"),
    *("NPM_CONFIG__AUTH", "OPENAI_APIKEY", "PIN", "VAULT_UNSEAL", "WANDB_LOGIN", "KUBECONFIG_DATA", "CREDS", "HF_PAT"),
)
