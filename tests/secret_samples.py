"""Lines with secrets and lines without, written so that no scanner takes this file for a leak.

In a line of `WITH_SECRETS` the secret stands between §; `{A20}` in it is twenty letters and digits, `{h32}` hexadecimal
digits, `{d10}` digits, `{U16}` capitals and digits, `{u35}` letters, digits, - and _, `{L20}` letters, `{b40}` base64;
`{P}` is somebody's password.
"""

from __future__ import annotations

import random
import re
import string

_ALPHABETS = {
    "A": string.ascii_letters + string.digits,
    "h": "0123456789abcdef",
    "d": string.digits,
    "U": string.ascii_uppercase + string.digits,
    "u": string.ascii_letters + string.digits + "-_",
    "L": string.ascii_letters,
    "b": string.ascii_letters + string.digits + "+/",
}

PASSWORD = "hun" + "ter2"


def made(template: str, source: random.Random) -> str:
    """A secret of a template."""
    text = template.replace("{P}", PASSWORD).replace("{B}", "dXNlcj" + "pwYXNzd29yZA==")
    return re.sub(
        r"\{([AhdUuLb])(\d+)\}", lambda place: "".join(source.choices(_ALPHABETS[place[1]], k=int(place[2]))), text
    )


def written(line: str, source: random.Random) -> tuple[str, str, str]:
    """Return the text before a secret, the secret, and the text after it."""
    before, secret, after = line.split("§")
    return before, made(secret, source), after


#: One line each.
WITH_SECRETS = tuple(
    line
    for line in """
password: §{P}§
Password: §{P}§
- **Password:** §{P}!x§
**Password**: §{P}§
my password is §{P}§.
my password is "§correcthorse§"
the wifi password is §swordfish42§
Wifi password: §swordfish§
password=§{P}§
password = "§{P}§"
password='§correct horse battery staple§'
"password": "§{P}§",
{"user":"x","password":"§{P}§"}
{\\"password\\": \\"§{P}§\\"}
DB_PASSWORD=§supersecret§
export API_TOKEN=§abcdefghijkl§
export API_KEY="§{A32}§"
API_KEY: §{A32}§
api_key = "§{h32}§"
apiKey: '§{h32}§',
client_secret=§{A24}§
"client_secret": "§{A24}§"
secret_key: §{A40}§
aws_secret_access_key = §{A10}/{A8}/{A20}§
AWS_SECRET_ACCESS_KEY=§{A10}/{A8}/{A20}§
aws_access_key_id = §AKIA{U16}§
§AKIA{U16}§
key §AIza{u35}§ is
Authorization: Bearer §{A32}§
authorization: bearer §{A32}§
-H 'Authorization: Bearer §{A32}§'
Authorization: Basic §{B}§
Authorization: token §{h40}§
X-Api-Key: §{A32}§
x-auth-token: §{A32}§
Bearer §{A20}1§
postgres://user:§{P}§@db.example.com:5432/app
postgresql+asyncpg://user:§p@ss#w0rd§@db.example.com/app
mongodb+srv://admin:§{P}§@cluster0.example.net/?retryWrites=true
redis://:§{P}§@localhost:6379/0
amqp://guest:§guest§@localhost
https://user:§{A20}§@github.com/org/repo
https://§{A24}1§@github.com/org/repo
Server=tcp:x.database.windows.net;User ID=sa;Password=§Passw0rd!§;Encrypt=true
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=§{A86}==§;EndpointSuffix=core.windows.net
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=§{A43}=§
https://x.blob.core.windows.net/c?sv=2020-08-04&sig=§{A40}%3D§&se=2024
https://api.example.com/v1?access_token=§{A20}§&x=1
https://api.example.com/v1?token=§abc123def§&x=1
https://api.example.com/v1?api_key=§{h32}§
https://s3.example.com/x?X-Amz-Signature=§{h64}1§&x=2
xoxb here §xoxb-{d12}-{d13}-{A24}§ ok
https://hooks.slack.com/services/§T{U8}/B{U8}/{A24}§
https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/§{h32}/{h36}§
https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=§{h8}7-{h4}-{h12}§
https://open.feishu.cn/open-apis/bot/v2/hook/§{h8}-{h4}-{h12}§
bot token §{d10}:AA{u33}§
https://api.telegram.org/§bot{d10}:AA{u33}§/sendMessage
§M{A23}.{A6}.{A27}§
https://discord.com/api/webhooks/123456789012345678/§{u68}§
§sk-{A48}§
§sk-proj-{u120}§
§sk-svcacct-{u80}§
§sk-ant-api03-{u93}AA§
§sk-or-v1-{h64}§
§gsk_{A52}§
§pplx-{A48}§
§hf_{A34}§
§pa-{u43}§
§ghp_{A36}§
§github_pat_{A22}_{A59}§
§gho_{A36}§
§glpat-{u20}§
§npm_{A36}§
§pypi-AgEIcHlwaS5vcmc{u80}§
§sk_live_{A24}§
§rk_test_{A24}§
§SG.{u22}.{u43}§
§SK{h32}§
§AC{h32}§
§eyJ{A20}.eyJ{A40}.{u43}§
密码：§{P}§
密码:§{P}§，用户名：root
数据库密码是§{P}§。
密码为：§abc12345§
WiFi密码（客厅）：§abc12345§
口令：§Tr0ub4dor§
口令: §123456§
密钥：§{h32}§
密钥是 §{A32}§
我的令牌是§ghp_{A36}§请保密
“§ghp_{A36}§”
「§sk-{A48}§」
令牌: §{A32}§
password for the staging db: §{P}§
password (staging): §{P}§
API key for X: §{h32}§
--password §{P}§
--password=§{P}§
--token=§{A20}§
--api-key §{h32}§
mysql --password='§{P}§'
<password>§{P}§</password>
| password | §{P}2§ |
| root | api_key | §{h32}§ |
define('DB_PASSWORD', '§{P}§');
machine x login me password §{P}§
curl -u me:§{P}§ https://x.example
sshpass -p §{P}§ ssh x
password = §{P}§
password: `§{P}§`
`password`: `§{P}§`
Passwort: §geheim42§
//npm.example.org/:_authToken=§{h36}§
_auth=§{B}§
token: §abc123def456§
token = "§abc123def456§"
TOKEN=§{A16}§
ENCRYPTION_KEY=§{h64}§
FERNET_KEY=§{A43}=§
password: str = "§{P}§"
String password = "§{P}§";
const apiKey = '§{A32}§'
os.environ["OPENAI_API_KEY"] = "§{A32}§"
config["password"] = "§{P}§"
passphrase: "§open sesame 7§"
パスワード：§{P}§
пароль: §{P}§
비밀번호: §{P}§
password=§{P}§&user=joe
login: root / password: §toor1234§
(password: §{P}§)
user root, password §{P}§
PGPASSWORD=§{P}§ psql -h x
MYSQL_PWD=§{P}§ mysql
  POSTGRES_PASSWORD: §example1§
  - POSTGRES_PASSWORD=§example1§
ENV SECRET_KEY §{A32}§
secret: "§{A32}§"
webhook secret §whsec_{A32}§
user: bob / pass: §{P}§
the password: "§correct horse battery staple§"
mysql -u root -p§{P}§ db
--password "§letmein§"
<add key="Password" value="§{P}§"/>
{"name": "DB_PASSWORD", "value": "§{P}§"}
password => '§{P}§'
TOKEN=§{A5}1§
§{d9}:AA{u32}§
key: §{h32}.{A16}§
aws_secret_access_key = §/{b39}§
AWS_SECRET_ACCESS_KEY=§/{b39}§
"SecretAccessKey": "§/{b39}§",
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=§/{b85}==§;EndpointSuffix=core.windows.net
SharedAccessKeyName=Root;SharedAccessKey=§/{b42}=§
encryption_key: §/{b42}=§
Cookie: sessionid=§{A32}§
Cookie: theme=dark; sessionid=§{A32}§; lang=en
Cookie: PHPSESSID=§{h26}§; sidebar=open
cookie: connect.sid=§s%3A{u32}.{b43}§
Cookie: a=[redacted:token]; sessionid=§{A32}§
Cookie: csrftoken=§{A32}§
Cookie: SID=§{u70}1§; author=bob
Cookie: x=§{A40}§
Set-Cookie: session=§{u43}§; Path=/; HttpOnly
Set-Cookie: theme=dark; Expires=Wed, 21 Oct 2026 07:28:00 GMT; jwt=§{u43}1§; SameSite=Lax
set-cookie: id_token="§{A20}1§"; Secure
-H 'Cookie: sessionid=§{A32}§' https://x.example
curl --cookie "auth=§{A20}1§" https://x.example
curl -b theme=dark; curl -b sessionid=§{A20}1§ https://x.example
curl -b sessionid=§{A20}1§ https://x.example
"Cookie": "lang=en; session=§{A32}§",
{\\"cookie\\": \\"session=§{A32}§\\"}
{"name": "Cookie", "value": "session=§{A32}§"}
document.cookie = "session=§{A32}§; path=/"
    client-key-data: §LS0tLS1CRUdJTi{b400}=§
"client-key-data": "§LS0tLS1CRUdJTi{b400}=§"
{"auths": {"r.example": {"auth": "§{B}§"}}}
    "auth": "§{B}§"
--password §{L20}§
--passphrase §{L20}§
machine h login me password §{L20}§
The password is §{L20}!§.
The password is §{L20}§.
密码是 §{L20}§
passphrase: §{L6}-{L6}-{L7}§
(password: §{L20}§)
my password is §{L20}§ and
password = §{L20}§
user root, password §{L24}§
| password | §{L24}§ |
pw: §{P}§
login: admin, pw: §Summer2024!§
pw: §geheim-123§
login: admin, pw: §blue-heron-7§
my PIN is §{d4}§
My PIN code is §{d6}§.
the PIN of the card was changed; the card pin: §{d4}§
meine PIN lautet §{d4}§
seed phrase: §abandon ability able about above absent absorb abstract absurd abuse access acid§
"mnemonic": "§abandon ability able about above absent absorb abstract absurd abuse access acid§"
The recovery phrase is §abandon ability able about above absent absorb abstract absurd abuse access acid§.
Seed words (ledger): 1. §abandon, ability, able, about, above, absent, absorb, abstract, absurd, abuse, access, acid§
user root pw §{P}§
db_pw=§{P}§
the pw is §{P}§
| pw | §{P}§ |
'pw': '§{P}§'
the db pass is §{P}§
the db pass is now §{P}§
the root pass is §toor1234§
password is now §{P}§
the password will be §{P}§
the admin password was changed to §{P}§
I set the password to §{P}§
reset your wifi password to §{P}§
temporary password - §{P}§
password – §{P}§
password → §{P}§
password -> §{P}§
le mot de passe est §{P}§
Le mot de passe est : §{P}§
mot de passe : §{P}§
voilà, le mdp est §{P}§
la contraseña es §{P}§
contraseña: §{P}§
a senha é §{P}§
sua senha é: §{P}§
la password è §{P}§
das Passwort ist §{P}§
het wachtwoord is §{P}§
hasło: §{P}§
lösenordet är §{P}§
şifre: §{P}§
mật khẩu: §{P}§
пароль — §{P}§
كلمة المرور: §{P}§
パスワードは§{P}§です
パスワードは「§{P}§」です
暗証番号は§482917§です
비밀번호는 §{P}§ 입니다
비번: §{P}§
密码改成§{P}§
密码设为 §{P}§
localhost:5432:mydb:me:§{P}§
*:*:*:postgres:§{P}§
db.example.com:5432:*:app:§{A20}§
10.0.0.5:5432:orders:app:§a\\:{P}§
CREATE USER u IDENTIFIED BY '§{P}§';
docker login -u me -p §{P}§ r.example
echo "§{P}§" | sudo -S ls
echo '§{P}§' | docker login -u me --password-stdin
wpa_passphrase=§{P}§
secret_key_base: §{h64}§
session_key=§{h64}§
"sessionKey": "§{A43}§"
--token §{L32}§
the token is §{L32}§
token: §{L20}/{L20}§
TOKEN=§$k7{A12}9§
export API_TOKEN="§$q{A14}4§"
DB_PASSWORD=§$w8{A12}x3§
api_key: §$z4{A16}b7§
"token": "§$m2{A14}n5§"
> §{b20}/{b18}4§
`§{b20}+{b18}4§`
- §{A39}7§
the key of the bucket is §{b20}/{b18}4§, do not share it
key = "§{b20}+{b18}4§"
Cookie: §{A24}7§
"cookie": "§{A24}7§"
Cookie: §{A26}7=§
Set-Cookie: opaque=§{A17}7§; Path=/
Cookie: theme=dark; id=§{A18}7§
Authorization: Digest username="joe", realm="r@x", uri="/a", response="§{h31}7§", qop=auth
authorization: digest username="joe", nonce="§{h31}7§", uri="/a"
Proxy-Authorization: Digest username="joe", cnonce="§{h7}7§", nc=00000001
Authorization: Digest username=joe, uri=/a, response=§{h31}7§
{"authorization": "Digest username=\\"joe\\", response=\\"§{h31}7§\\""}
Authorization: Hawk id="dh37fgj492je", ts="1353832234", mac="§{b42}7=§"
-H 'Authorization: Hawk id="dh37fgj492je", mac="§{b42}7=§"' https://x.example
Authorization: AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-date, Signature=§{h63}7§
x-api-key: §{P}§
X-API-Key: §{P}§
-H 'x-api-key: §{P}§' https://x.example
{"headers": {"x-api-key": "§{P}§"}}
x-auth-token: §abc12§
passphrase: §correct horse battery staple§
Passphrase: §ladder cinnamon walrus orbit plum§
- **Passphrase:** §ladder cinnamon walrus orbit plum§
PASSPHRASE=§correct horse battery staple§
passphrase = §ladder-cinnamon walrus orbit plum§
passphrase (laptop): §correct horse battery staple§
https://x.example/in?reset_token_8f3a=§{A12}7§
https://x.example/in?a=1&verify_token_u123=§{A10}7§&b=2
https://x.example/in?email_verification_token_550e8400-e29b-41d4=§{A16}7§
https://x.example/in?share_token_main=§{A8}7{A24}§
{"password": {"value": "§{P}§"}}
{"apiKey": { "value": "§{A24}7§", "origin": "file" }}
{"a": "{\\"b\\": \\"{\\\\\\"password\\\\\\": \\\\\\"§{P}§\\\\\\"}\\"}"}
{"a":"{\\"b\\":\\"{\\\\\\"c\\\\\\":\\\\\\"{\\\\\\\\\\\\\\"password\\\\\\\\\\\\\\":\\\\\\\\\\\\\\"§{P}§\\\\\\\\\\\\\\"}\\\\\\"}\\"}"}
curl -u "me:§{P} and more§" https://x.example
curl --user 'me:§correct horse 7§' https://x.example
curl -ume:§{P}§ https://x.example
curl -u 'CORP\\joe:§{P}§' https://x.example
{"command": "curl -u \\"me:§{P}§\\" https://x.example"}
{"command": "curl -H \\"x-api-key: §{P}§\\" https://x.example"}
curl -d 'api_key=§{P}§' https://x.example
curl --data-raw "token=§{A6}7§&x=1" https://x.example
""".splitlines()
    if line
)

#: Several lines each.
WITH_SECRETS += (
    'variable "db_password" {\n  type    = string\n  default = "§{P}§"\n}',
    'variable "api_token" {\n  description = "Of the API"\n  sensitive   = true\n  default     = "§{A32}§"\n}',
    'variable "secret" { default = "§{A32}§" }',
)

#: Labels of a password in each language that docs/privacy.md lists, and in sentences.
PASSWORD_LABELS = {
    language: [line.strip() for line in lines.split("/")]
    for language, lines in (
        row.split(None, 1)
        for row in """
English     password: § / my password is §
German      passwort: § / kennwort: § / das Passwort ist §
Dutch       wachtwoord: § / het wachtwoord is §
Danish      adgangskode: § / kodeord: § / adgangskoden er §
Norwegian   passord: §
Swedish     lösenord: § / losenord: § / lösenordet är §
Finnish     salasana: § / salasana §
French      mot de passe: § / mdp: § / le mot de passe est § / mot de passe du wifi : §
Spanish     contraseña: § / contrasena: § / la contraseña es § / contraseña de la cuenta: §
Portuguese  senha: § / palavra-passe: § / a senha é § / a senha do wifi: §
Italian     password: § / la parola d'ordine è §
Romanian    parola: § / parola este § / parola de la wifi: §
Polish      hasło: § / haslo: § / haslo jest § / hasło do wifi: §
Czech       heslo: § / heslo je § / heslo k wifi: §
Slovak      heslo: § / heslo je §
Hungarian   jelszó: § / jelszo: § / jelszava: § / a jelszó §
Turkish     şifre: § / sifre: § / parola: § / ŞİFRE: § / Wi-Fi şifresi: §
Russian     пароль: § / пароль от почты §, запомни / пароль от почты a1@b.example: § / пароль для входа в сеть: §
Ukrainian   пароль: § / пароль від пошти § / пароль до вайфаю — §
Greek       κωδικός: § / κωδικος: § / ΚΩΔΙΚΟΣ: § / κωδικός πρόσβασης: § / συνθηματικό: § / ο κωδικός είναι §
Arabic      كلمة المرور: § / كلمة السر هي §
Hebrew      סיסמה: § / הסיסמה היא §
Persian     رمز عبور: § / گذرواژه: § / رمز عبور § است
Hindi       पासवर्ड: § / पासवर्ड § है
Thai        รหัสผ่าน: § / รหัสผ่านคือ § / รหัสผ่าน §
Vietnamese  mật khẩu: § / mat khau: § / mật khẩu là § / mat khau la §
Indonesian  kata sandi: § / kata sandi adalah §
Malay       kata laluan: §
Chinese     密码: § / 密碼：§ / 密码是 §
Japanese    パスワード: § / パスワードは§
Korean      비밀번호: § / 비밀번호는 §
""".splitlines()
        if row
    )
}

#: Tokens that need no label.
BY_THEIR_LOOK = tuple(line.strip("§") for line in WITH_SECRETS if re.fullmatch("§[^§]+§", line))

WITHOUT_SECRETS = tuple(
    line
    for line in r"""
the token budget is 400 tokens
token budget: 400
password reset flow
Password reset: see the wiki
secret: never give up
Secret Santa: Alice gets Bob
password = os.environ["X"]
password=os.environ['DB_PASSWORD']
token=None
token = None
api_key=settings.key
api_key = settings.openai_api_key
api_key=<your-key>
API_KEY=your-api-key-here
OPENAI_API_KEY=sk-...
OPENAI_API_KEY="sk-..."
TOKEN=${TOKEN}
token: ${{ secrets.GITHUB_TOKEN }}
password: "{{ vault_password }}"
password: xxxx
password: ********
PASSWORD=xxxxxxxx
password=<password>
ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
commit 3f786850e387550fdab836ed7e6dc881de23001b fixed it
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
550e8400-e29b-41d4-a716-446655440000
session id 550e8400-e29b-41d4-a716-446655440000
data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==
/srv/user/projects/recalld/memory/redaction/tokens.py:123
max_tokens=1000
"max_tokens": 4096,
{"token": "hello", "logprob": -0.12}
tokens: 1,234,567
eos_token="</s>"
def f(password: str, token: str | None = None) -> None:
    password: str
password: string;
const token = await getToken();
token = request.headers.get("x-token")
auth = Bearer authentication
Bearer tokens are used for authentication
Bearer <token>
Authorization: Bearer $TOKEN
Authorization: Bearer <token>
-H "Authorization: Bearer ${API_KEY}"
Basic authentication is off
basic dXNlcg is not it
http://localhost:8080/@user
https://medium.com/@someone/article-name-abcdef123456
see https://example.com:443/path?x=a@b.com
ssh://git@github.com:22/org/repo
git@github.com:org/repo.git
PWD=/srv/user/work
OLDPWD=/tmp
primary key: id
foreign_key=user_id
PRIMARY_KEY=abc123def456
cache_key=5f4dcc3b5aa765d61d8327deb882cf99
idempotency key: 550e8400-e29b-41d4-a716-446655440000
public key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ
sort_key = "created_at2024"
the password is stored in the vault
my password is correct
the password is SHA256-hashed
password is required
Password: required
- password: optional
the token is valid for 30 days
token: 2024-01-05
the secret is 32 bytes long
PASS: test_foo_1234
pass: 12 fail: 3
bypass=true
密码是必填项
密码：请联系管理员
密码：8位以上
令牌数量：400
密码重置流程
忘记密码？
API 密钥管理
token 预算是 400
sk-estimator-doc-link-fitted-label
class="sk-toggleable__content sk-estimator-id-1"
task-3f786850e387550fdab836ed7e6dc881de23001b
the API key: ask Bob
api key: see 1Password
API key is in the vault
if password == other_password:
self.password = password
self._token = token
token = tokens[3]
password=password, user=user
foo(password=password)
password: hashedPassword,
"password": "Password",
"forgot_password": "Forgot your password?",
label: "Enter your password"
password: "Enter your password"
secretName: my-app-tls
secret: my-app-v2
secret_key_ref: db-credentials
--token TOKEN
pass --token to the command
use the --password flag
-----BEGIN PUBLIC KEY-----
a line such as -----BEGIN PRIVATE KEY----- starts it and it goes on in prose here
curl -u $USER:$PASS https://x.example
docker run -u 1000:1000 image
| Password | varchar(255) |
| token | int64 |
| key | value |
password_hash: abc
access_token_url = "https://example.com/oauth/token"
token_type: bearer
"token_type": "Bearer"
chmod 600 ~/.ssh/id_ed25519
uses a JWT (eyJ...) token
pa-rtially-hyphenated-words-that-go-on-and-on-forever-and-ever
hf_hub_download(repo_id="x/y", filename="z")
npm_config_registry=https://example.com
github_pat_example
request_id=req_011CSHoEeqs5C35K2UUqR7Fy
tool_use_id: toolu_01A09q90qw90lq917835lq9
model: claude-sonnet-4-5-20250929
session: 01JABCDEF0123456789ABCDEFG
key = lambda x: x[1]
token: abc
Token usage: 12345 input, 678 output
secrets: inherit
The password must be at least 12 characters
password: min. 12 characters
Password policy: 12+ chars
密码策略：至少12位
口令：无
pass: step-12
PASS: hunter22
"password": "Please type it again",
docker run mysql -p3306:3306
mysql -p db
a passkey is better than a password
private_key: /etc/ssl/private/server.key
password_file=/run/secrets/db
token: ./tokens/main.json
private_key: /etc/ssl/private/ServerKeys/Main2024
secret_key = /Users/JohnSmith/Projects/MyApp2/Secrets/Token
access_key=/opt/Keys/2024/ProductionServer/Backup1
client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSURCVENDQWUyZ0F3SUJB
Cookie: theme=dark; lang=en
Cookie: sessionid=<id>; auth=true; session=deleted; token=xxxxxxxx
Cookie: author=someone1; sidebar=closed-2024; tz=Europe/Amsterdam; seen=2024-01-05T10:00:00Z
Cookie: prefs=%7B%22theme%22%3A%22dark%22%2C%22size%22%3A12%7D
Set-Cookie: theme=dark; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT; HttpOnly; Secure
Set-Cookie: session=$SESSION; Path=/
the cookie session=value pair
cookie = cookies[0]
"auth": "required"
auth: password
auth = username
auth: {"user": "x"}
"auth": "dXNlcm5hbWU="
--password PASSWORD
which are original--pass `strict=False` instead
the password “Forgot it again”
"client-key-data": TEST_CLIENT_KEY_BASE64,
wget --ask-password -user=foo2
passwd: HTTPPasswordMgr
--password PlaceholderText
--password requiredArgument
the password is required
the password is NotRequiredAnymore
The password is PostgreSQL's
password: getPassword
password: LastPass
- **Password**: Bitwarden
password: Required
the password is HTTPSConnection
my password is Donaudampfschifffahrt
password alphabet abcdefghijklmnopqrstuvwxyz
password management documentation
the password wprowadzanie wachtwoordbeheer
passphrase: see the wiki
passphrase: PasswordBasedEncryption,
--passphrase-file /etc/backup/passphrase
密码是 Required
token XMLHttpRequestEventTarget
"sessionKey": "agent:main:telegram:direct:12345678"
sessionKey: agent:main:telegram:direct:12345678
session_key=agent:main:cron:4f2a
"sessionKey":"agent:main:subagent:550e8400-e29b-41d4-a716-446655440000"
"sessionKey": "agent:main:signal:group:Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZg=="
"sessionKey": "hook:550e8400-e29b-41d4-a716-446655440000"
"sessionKey": "cron:4f2a91bc"
session key is agent:main:whatsapp:group:120363025@g.us
cache key: user:1234:profile
account key: tenant:42:orders
token: :crypto.strong_rand_bytes(32)
token: :crypto...
password: :string
secret: :my_secret_1
api_key: ::Config::KEY1
secret: arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-AbCdEf
password: vault:secret/data/db#password1
apiKey: process.env.OPENAI_KEY_2!
variable "db_password" { default = null }
variable "db_password" { default = var.password2 }
variable "instance_type" { default = "t3.micro2" }
localhost:5432:mydb
127.0.0.1:8080:80
hostname:port:database:username:password
localhost:5432:mydb:myuser:mypassword
src/main.rs:12:5:error:oops1
Makefile:1234:all:build:test1
root:x:0:0:root:/root:/bin/bash
pw = 1280
the pass is closed
the first pass is finished7
another pass is finished7
gpio pin 4821
gpio pin: 4821
my pin is 12
our pin is 1024x768
seed: 42
seed: the first ones were sown late this year and all others too
recovery: abandon ability able about above absent
backup codes: see the vault
backup codes are 2024-11-05 2024-11-06
recovery codes: error12345.log, error23456.log
pw: 12px
pw, ph = 1280, 720
pwm: 255x
with sync_playwright() as pw:
the pass is 12 m long
first pass is O(n2)
le mot de passe est requis
le mot de passe est trop court
la contraseña es incorrecta
a senha é obrigatória
senha: obrigatoria
desenha: abc12345
heslo dne: laska1
parola = "casa"
Ταχυδρομικός κωδικός: 11526
סיסמה: לפחות 8 תווים
รหัสผ่านคือข้อมูลลับ
пароль от почты лежит в сейфе
não desenha: abc12345
パスワードは必須です
パスワードは8文字以上です
비밀번호는 8자 이상이어야 합니다
密码改成功了
password - optional
password - see 1Password
the password to server2 is in the vault
access to db01 with the password to come
set the token to 400
docker login -u me -p $TOKEN
echo "$PASSWORD" | sudo -S ls
echo done | tee log
TOKEN=$GITHUB_TOKEN
TOKEN=$token2
TOKEN=$apiKeyV2
TOKEN=$my_s3_key1
export PASSWORD="$DB_PASSWORD_2024"
token: $githubTokenV3Prod
API_KEY=$OPENAI_API_KEY_2
SECRET=${k7QzP2mNw9xLr4Tb}
SECRET=$(pass show k7QzP2mNw9xLr4Tb)
password="$db1_password2"
PASSWORD=$K8S_B64_PW1
$apiKey2 = $config1
token=$accessTokenBase64
password=$1
da39a3ee5e6b4b0d3255bfef95601890afd80709
DA39A3EE5E6B4B0D3255BFEF95601890AFD80709
0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed
5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed
SGVsbG8gd29ybGQsIHRoaXMgaXMgYSBzZW50ZW5j
5L2g5aW977yM5LiW55WM44CC5LuK5aSp5aSp5rCU
eyJuYW1lIjoiSm9lIiwiYWdlIjo0Miwib2siOnRy
src/Main/java/Com/Example/Gateway2Client
/opt/Keys2024/Production/Backup1/Server12
etag: "mV9c7Kq2/Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi+t"
"contentHash": "mV9c7Kq2/Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi+t"
cursor=mV9c7Kq2/Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi+t
state id mV9c7Kq2XXw4rT8yLpZ3nB6sHdJ1fG5aQeUoRirt is stale
https://x.example/mV9c7Kq2Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi7tZ
getAwsSecretAccessKeyFromSecretsManager1
file_mV9c7Kq2Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi7tZ.png
sha1-mV9c7Kq2/Xw4rT8yLpZ3nB6sHdJ1fG5aQeUoRi+t
Cookie: theme=dark
Cookie: consent=accepted-2026; _ga=GA1.2.1234567890.1234567890
Cookie: locale=en-US; currency=EUR; cart=3-items
cookie: settings.cookie_name_2
cookie: none
cookies: 400
Cookie: required-for-login-2
cookie: 2026-01-05T10:00:00Z
cookie = cookies["session_2"]
Cookie: <opaque-value-1>
Cookie: experiment=checkout-button-v12; seen=1
cookie: see/docs/cookies/version2
Set-Cookie: lang=de; Max-Age=31536000; Domain=shop2.example.com
Cookie: $COOKIE_HEADER_2
WWW-Authenticate: Digest realm="r@x", qop="auth,auth-int", algorithm=SHA-256
Authorization: Digest username="joe", realm="r@x", uri="/dir/index2.html", qop=auth, nc=00000001
Authorization: Digest username="...", response="..."
Authorization: Digest response="<response>", nonce="<nonce-1>"
Authorization: Digest response="$RESPONSE1", cnonce="${CNONCE}"
Authorization: Digest response="{response}", nonce="xxxxxxxx"
Authorization: Hawk id="dh37fgj492je", ts="1353832234", ext="some-app-2"
Authorization: Hawk mac="...", id="1"
the digest response="ok" came after 12 ms
response="200 OK", mac="00:1a:2b:3c:4d:5e"
Authorization: digest authentication with MD5 is off
nonce = 12345678, response = 2
x-api-key: required
x-api-key: <key>
x-api-key: $API_KEY
x-api-key: ${API_KEY_2}
x-api-key: your-key-1
x-api-key: apiKey2
x-api-key: string1
x-api-key: the header of every request
x-api-key: {{ api_key }}
x-api-key: test1
x-api-key: xxxx1234
x-request-id: abc123
x-token-version: v2
'x-api-key': apiKey1,
passphrase: ask Anna
passphrase: ask anna for it again
passphrase: kept in the office safe
passphrase: stored with the other backups
passphrase: same as on the old laptop
passphrase: changed by anna every month
passphrase: four words from a dictionary
passphrase: never written down anywhere else
passphrase: nobody knows where it went
passphrase: length, words, language
passphrase: see 1Password under backups
passphrase: generated by diceware last year
passphrase = prompt user twice then compare
https://x.example/in?token_type=bearer&x=1
https://x.example/in?next_token_2=CAESBk15c1RlYW0x
https://x.example/in?page_token_1a=CAESBk15c1RlYW0x
https://x.example/in?token_count_1=400
https://x.example/in?token_expires_at=2026-09-01T10:00:00Z
https://x.example/in?token_id_2=<token>
https://x.example/in?max_token_limit=4096
https://x.example/in?access_token_url=https://x.example/oauth2/token
https://x.example/in?token_name_1=deploy-bot
https://x.example/in?reset_token_1=${TOKEN}
{"password": {"value": "required"}}
{"password": {"type": "string", "minLength": 12}}
{"token": {"value": null, "ttl": 3600}}
{"token": {"value": 42}}
{"apiKey": {"value": "<your-key-1>"}}
{"apiKey": {"value": "${OPENAI_API_KEY_2}"}}
{"secret": {"value": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-1"}}
{"tokens": {"value": 12345, "limit": 20000}}
{"passwordPolicy": {"value": "12+ characters"}}
{"a": "{\"b\": \"{\\\"password\\\": \\\"required\\\"}\"}"}
curl -u "$USER:$PASS" https://x.example
curl -u "user:<password>" https://x.example
curl --user '${NAME}:${WORD}' https://x.example
curl -u me https://x.example:8080/a
curl "https://x.example:8443/a" -o "out:1"
curl --unix-socket /run/x.sock http://localhost/v1:2
curl -d 'grant_type=client_credentials' https://x.example
curl -d "token=$TOKEN2" https://x.example
curl -d 'max_tokens=400' https://x.example
curl -F 'file=@report2.pdf' https://x.example
curl -H "x-request-id: abc123" https://x.example
""".splitlines()
    if line
)
